//! What machine code says of the padding in it: whether something runs into it.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// What a function's instructions say, decoded from its begin.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// It does not run on into what is behind it.
    pub ends: bool,
    /// Padding in it that nothing of it runs into: none where it jumps by table.
    pub dead: Vec<Range<u64>>,
    /// What its jumps, calls and addresses aim at.
    pub targets: Vec<u64>,
}

impl Body {
    /// Of the function with these bytes at `from`. `None` if they are not all
    /// instructions.
    pub fn of(bytes: &[u8], from: u64) -> Option<Self> {
        let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
        let mut body = Self::default();
        let mut by_table = false;
        // The padding that is being read, behind a jump or a return.
        let mut open: Option<(u64, u64)> = None;
        let mut last: Option<Instruction> = None;
        while decoder.can_decode() {
            let now = decoder.decode();
            if now.is_invalid() {
                return None;
            }
            if does_nothing(&now) {
                if let Some(last) = last.filter(leaves) {
                    open = Some((now.ip(), last.near_branch_target()));
                }
            } else if let Some((begin, over)) = open.take()
                // A jump over it only keeps the place for somebody (LLVM's XRay).
                && over != now.ip()
            {
                body.dead.push(begin..now.ip());
            }
            by_table |= now.flow_control() == FlowControl::IndirectBranch;
            body.targets.extend(target(&now));
            last = Some(now);
        }
        body.ends = last.as_ref().is_some_and(|i| leaves(i) || is_last(i));
        body.targets.sort_unstable();
        body.targets.dedup();
        let targets = &body.targets;
        // A compiler pads for what is behind to begin at a round address: for a label of
        // the function's own.
        body.dead.retain(|dead| {
            !by_table
                && dead.end.is_multiple_of(8)
                && targets.binary_search(&dead.end).is_ok()
                && !targets.iter().any(|at| dead.contains(at))
        });
        Some(body)
    }
}

/// Whether a function with these bytes at `from` loads a constant into a register right
/// before `site`, by five bytes, and nothing of it goes into the middle of that.
pub fn is_constant_loaded(bytes: &[u8], from: u64, site: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
    let mut loaded = false;
    while decoder.can_decode() {
        let now = decoder.decode();
        if target(&now).is_some_and(|at| at.wrapping_add(4).wrapping_sub(site) < 4) {
            return false;
        }
        loaded |= now.next_ip() == site
            && now.code() == Code::Mov_r32_imm32
            && now.len() == 5
            && now.op0_register() != Register::ESP;
    }
    loaded
}

/// Whether these bytes are instructions that do nothing, or traps.
pub fn is_padding(bytes: &[u8]) -> bool {
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode())).all(|i| does_nothing(&i))
}

/// Whether some bytes of a text at `from` look like a jump or a call to one of these
/// addresses, or like the loading of one, wherever instructions begin. Short jumps are
/// not looked for.
pub fn is_aimed_at(text: &[u8], from: u64, addresses: &Range<u64>) -> bool {
    const BLOCK: usize = 4096;
    // The low halves tell enough, and are quicker.
    let length = (addresses.end - addresses.start) as u32;
    let start = (addresses.start as u32).wrapping_sub(from as u32).wrapping_sub(4);
    (0..text.len()).step_by(BLOCK).any(|begin| {
        let end = text.len().min(begin + BLOCK + 3);
        let block = text.get(begin..end).unwrap_or_default();
        let start = start.wrapping_sub(begin as u32);
        let aims = |(at, word): (usize, &[u8; 4])| {
            let aim = u32::from_le_bytes(*word).wrapping_add(at as u32);
            aim.wrapping_sub(start) < length
        };
        let words = || block.array_windows().enumerate();
        // Without an early end, for the compiler to do many at once.
        words().fold(false, |hit, word| hit | aims(word))
            && words().any(|word| aims(word) && has_distance(text, begin + word.0))
    })
}

/// Whether what is at `at` may be the distance of a jump, a call or a `lea`.
fn has_distance(text: &[u8], at: usize) -> bool {
    let back = |by: usize| at.checked_sub(by).and_then(|i| text.get(i)).copied().unwrap_or(0);
    match (back(2), back(1)) {
        (_, 0xe8 | 0xe9) | (0x0f, 0x80..=0x8f) | (0xc7, 0xf8) => true,
        (0x8d, operand) => operand & 0xc7 == 0x05,
        _ => false,
    }
}

fn does_nothing(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
}

/// Whether what is behind it does not run next.
fn leaves(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}

/// Whether it ends a function that has it last. A call does: a compiler puts it there
/// only if it does not return (__stack_chk_fail).
fn is_last(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Call
        || matches!(instruction.mnemonic(), Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Int3)
}

fn target(instruction: &Instruction) -> Option<u64> {
    let near = instruction.near_branch_target();
    if near != 0 {
        return Some(near);
    }
    instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `je`, a call, `ret`, seven bytes of padding, and what the `je` goes to.
    const WRITE: [u8; 17] = [
        0x74, 0x0e, 0x0f, 0x05, 0x90, 0x90, 0x90, 0x90, 0xc3, // je +14; syscall; ret
        0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00, // nopl
        0xc3, // ret
    ];

    #[test]
    fn padding_behind_a_return_is_dead() {
        let body = Body::of(&WRITE, 0x1000).unwrap();
        assert_eq!(body.dead, vec![0x1009..0x1010]);
        assert_eq!(body.targets, [0x1010]);
        assert!(body.ends);
    }

    #[test]
    fn padding_that_something_runs_into_is_not() {
        // Nothing before it leaves.
        let mut runs_on = WRITE;
        runs_on[8] = 0x90;
        assert!(Body::of(&runs_on, 0x1000).unwrap().dead.is_empty());
        // A jump goes into it.
        let mut into = WRITE;
        into[4..6].copy_from_slice(&[0xeb, 0x05]); // jmp to the nopl
        assert!(Body::of(&into, 0x1000).unwrap().dead.is_empty());
        // Nothing goes to what is behind it.
        let mut for_nothing = WRITE;
        for_nothing[1] = 0;
        assert!(Body::of(&for_nothing, 0x1000).unwrap().dead.is_empty());
        // What is behind it is at no round address.
        assert!(Body::of(&WRITE, 0x1001).unwrap().dead.is_empty());
        // By table it may go anywhere.
        let mut by_table = WRITE;
        by_table[4..6].copy_from_slice(&[0xff, 0xe0]); // jmp *rax
        assert!(Body::of(&by_table, 0x1000).unwrap().dead.is_empty());
        // It is jumped over: somebody means to write there.
        let mut kept = WRITE;
        kept[7..9].copy_from_slice(&[0xeb, 0x07]);
        assert!(Body::of(&kept, 0x1000).unwrap().dead.is_empty());
        // Its address is taken.
        let mut taken = WRITE.to_vec();
        taken.splice(4..8, [0x48, 0x8d, 0x05, 0x02, 0, 0, 0, 0x90]); // lea +2(%rip)
        taken[1] = 18;
        assert_eq!(Body::of(&taken, 0x1004).unwrap().targets, [0x1011, 0x1018]);
        assert!(Body::of(&taken, 0x1004).unwrap().dead.is_empty());
    }

    #[test]
    fn a_constant_that_is_loaded_before_a_call_is_known() {
        // jmp over; mov eax, 13; syscall; ret
        let code = [0xeb, 0x00, 0xb8, 13, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert!(is_constant_loaded(&code, 0x1000, 0x1007));
        assert!(!is_constant_loaded(&code, 0x1000, 0x1006));
        assert!(!is_constant_loaded(&code, 0x1000, 0x1009));
        // To the call itself is no harm; into the constant is.
        for (to, harmless) in [(5, true), (4, false), (1, false), (0, true)] {
            let mut jumps = code;
            jumps[1] = to;
            assert_eq!(is_constant_loaded(&jumps, 0x1000, 0x1007), harmless, "{to}");
        }
        // mov r8d, 13: the same bytes with one before them.
        let edi = [0x90, 0x90, 0xbf, 13, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert!(is_constant_loaded(&edi, 0x1000, 0x1007));
        let esp = [0x90, 0x90, 0xbc, 13, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert!(!is_constant_loaded(&esp, 0x1000, 0x1007));
        let other = [0x90, 0x41, 0xb8, 13, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert!(!is_constant_loaded(&other, 0x1000, 0x1007));
        assert!(!is_constant_loaded(&[], 0x1000, 0x1007));
    }

    #[test]
    fn a_function_ends_or_runs_on() {
        let ends = |bytes: &[u8]| Body::of(bytes, 0).map(|body| body.ends);
        assert_eq!(ends(&[0x90]), Some(false));
        assert_eq!(ends(&[0x74, 0x00]), Some(false));
        assert_eq!(ends(&[0xc3]), Some(true));
        assert_eq!(ends(&[0xe8, 0, 0, 0, 0]), Some(true));
        assert_eq!(ends(&[0x0f, 0x0b]), Some(true));
        assert_eq!(ends(&[0x06]), None);
        assert_eq!(ends(&[]), Some(false));
    }

    #[test]
    fn what_aims_at_an_address_is_found_wherever_it_is() {
        for at in [1, 4092, 4093, 4095, 4096, 9000 - 4] {
            let mut text = vec![0xcc; 9000];
            text[at - 1] = 0xe9;
            let from = 0x7fff_1234_5000_u64;
            // A jump back to `from + 100`.
            let aim = 100 - (at as i32 + 4);
            text[at..at + 4].copy_from_slice(&aim.to_le_bytes());
            assert!(is_aimed_at(&text, from, &(from + 100..from + 101)), "{at}");
            assert!(is_aimed_at(&text, from, &(from + 94..from + 101)), "{at}");
            assert!(!is_aimed_at(&text, from, &(from + 101..from + 108)), "{at}");
            assert!(!is_aimed_at(&text, from, &(from + 93..from + 100)), "{at}");
            text[at - 1] = 0x90;
            assert!(!is_aimed_at(&text, from, &(from + 100..from + 101)), "{at}");
        }
        let aimed = |text: &[u8]| is_aimed_at(text, 0, &(6..7));
        assert!(aimed(&[0x0f, 0x84, 0, 0, 0, 0]));
        assert!(aimed(&[0x8d, 0x05, 0, 0, 0, 0]));
        assert!(aimed(&[0x8d, 0x3d, 0, 0, 0, 0]));
        assert!(!aimed(&[0x8d, 0x45, 0, 0, 0, 0]));
        assert!(!is_aimed_at(&[], 0, &(0..7)));
    }
}
