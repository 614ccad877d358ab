//! The GitHub Action in action.yml, run as a runner does: its one step is a script that gets its
//! inputs as variables.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use saphyr::{LoadableYamlNode, Yaml};
use support::process::{Finished, finish};
use support::{Scratch, coldtrace, coldtrace_path, find_program, skip};

/// What action.yml says.
struct Action {
    /// Defaults of the inputs.
    inputs: BTreeMap<String, String>,
    /// Variables of the step: the name of the input that each holds.
    variables: BTreeMap<String, String>,
    script: String,
}

fn text(yaml: &Yaml, key: &str) -> String {
    yaml[key].as_str().unwrap_or_else(|| panic!("{key} is text")).to_owned()
}

fn map<'a, 'b>(yaml: &'a Yaml<'b>) -> impl Iterator<Item = (String, &'a Yaml<'b>)> {
    let map = yaml.as_mapping().expect("a mapping").iter();
    map.map(|(key, value)| (key.as_str().expect("a text").to_owned(), value))
}

impl Action {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("action.yml");
        let source = std::fs::read_to_string(path).expect("action.yml can be read");
        let documents = Yaml::load_from_str(&source).expect("it is YAML");
        let [action] = documents.as_slice() else { panic!("it is one document") };
        for key in ["name", "description"] {
            assert!(!text(action, key).is_empty());
        }
        assert_eq!(text(&action["runs"], "using"), "composite");
        let steps = action["runs"]["steps"].as_vec().expect("a list");
        let [step] = steps.as_slice() else { panic!("one step") };
        assert_eq!(text(step, "shell"), "bash");
        let status = format!("${{{{ steps.{}.outputs.status }}}}", text(step, "id"));
        assert_eq!(text(&action["outputs"]["status"], "value"), status);
        let input = |(variable, value): (String, &Yaml)| {
            let value = value.as_str().expect("a text").to_owned();
            let input = value.strip_prefix("${{ inputs.").and_then(|v| v.strip_suffix(" }}"));
            (variable, input.expect("it is an input").to_owned())
        };
        Self {
            inputs: map(&action["inputs"])
                .map(|(name, input)| (name, text(input, "default")))
                .collect(),
            variables: map(&step["env"]).map(input).collect(),
            script: text(step, "run"),
        }
    }
}

/// A job: a checkout with a baseline, and the files of a runner.
struct Job {
    action: Action,
    scratch: Scratch,
}

impl Job {
    fn new(name: &str) -> Option<Self> {
        if find_program("bash").is_none() {
            skip("no bash");
            return None;
        }
        let job = Self { action: Action::read(), scratch: Scratch::new(name) };
        std::fs::create_dir(job.path("a checkout")).expect("scratch can be written");
        Some(job)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    fn record(&self, command: &[&str]) {
        let mut check = coldtrace("check");
        check.args(["--update", "-n", "2", "--"]).args(command);
        finish(check.current_dir(self.path("a checkout"))).assert_code(0);
    }

    fn baseline(&self) -> PathBuf {
        self.path("a checkout").join("coldtrace.toml")
    }

    /// Runs the step with these inputs.
    fn run(&self, with: &[(&str, &str)]) -> Finished {
        for name in ["summary", "output"] {
            std::fs::write(self.path(name), "before\n").expect("scratch can be written");
        }
        std::fs::write(self.path("step.sh"), &self.action.script).expect("scratch can be written");
        let mut inputs = self.action.inputs.clone();
        inputs.insert("binary".into(), coldtrace_path().display().to_string());
        for (name, value) in with {
            let known = inputs.insert((*name).to_owned(), (*value).to_owned());
            assert!(known.is_some(), "{name} is an input");
        }
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(self.path("step.sh"));
        for (variable, input) in &self.action.variables {
            bash.env(variable, &inputs[input]);
        }
        bash.env("RUNNER_TEMP", self.scratch.root());
        bash.env("GITHUB_STEP_SUMMARY", self.path("summary"));
        bash.env("GITHUB_OUTPUT", self.path("output"));
        finish(bash.current_dir(self.path("a checkout")))
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("it was written before")
    }
}

#[test]
fn each_input_reaches_the_step_as_a_variable() {
    let action = Action::read();
    let inputs: Vec<&String> = action.inputs.keys().collect();
    let mut used: Vec<&String> = action.variables.values().collect();
    used.sort();
    assert_eq!(inputs, used);
    assert!(!action.script.contains("${{"), "what is put into a script is run as code");
}

#[test]
fn the_step_ends_as_the_check_does_and_adds_to_the_summary() {
    let Some(job) = Job::new("action") else { return };
    job.record(&["true"]);
    let passed = job.run(&[]);
    assert_eq!(passed.assert_code(0).out(), "coldtrace: pass: 1 case passed\n");
    assert_eq!(job.read("output"), "before\nstatus=0\n");
    assert!(job.read("summary").starts_with("before\n## coldtrace: pass `coldtrace.toml`\n"));

    let text = std::fs::read_to_string(job.baseline()).expect("it was recorded");
    let text = format!("{text}\n[[rule]]\nid = \"quiet\"\nsyscall = \"execve\"\nmax = 0\n");
    std::fs::write(job.baseline(), text).expect("scratch can be written");
    let sarif = job.path("out.sarif");
    let failed = job.run(&[("args", &format!("--case true\n --report sarif={}", sarif.display()))]);
    failed.assert_code(1);
    assert!(failed.out().contains("::error file=coldtrace.toml,line="), "{failed}");
    assert!(failed.out().contains("title=true%3A quiet::"), "{failed}");
    assert_eq!(job.read("output"), "before\nstatus=1\n");
    assert!(job.read("summary").contains("| `quiet` | **error** |"), "{}", job.read("summary"));
    assert!(sarif.is_file());

    job.run(&[("summary", "false")]).assert_code(1);
    assert_eq!(job.read("summary"), "before\n");
}

#[test]
fn what_was_not_checked_is_an_annotation_with_its_status() {
    let Some(job) = Job::new("action-none") else { return };
    // A name that would be code in a script.
    for (inputs, status) in [
        ([("baseline", "$(touch gone).toml"), ("strict", "false")], 4),
        ([("args", "--no-such-option"), ("strict", "true")], 2),
        ([("binary", "/no/such/coldtrace"), ("strict", "true")], 127),
    ] {
        let finished = job.run(&inputs);
        finished.assert_code(status);
        let line = format!(
            "::error title=coldtrace::nothing was checked: coldtrace ended with status {status}\n"
        );
        assert_eq!(finished.out(), line, "{finished}");
        assert!(job.read("summary").ends_with(&format!("nothing was checked (status {status})\n")));
        assert_eq!(job.read("output"), format!("before\nstatus={status}\n"));
    }
    assert!(!job.path("a checkout").join("gone").exists());
}

#[test]
fn what_the_manual_shows_is_yaml() {
    let manual = include_str!("../docs/ci.md");
    let blocks: Vec<&str> = manual
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split_once("```").expect("the block ends").0)
        .collect();
    assert!(blocks.len() >= 5, "{blocks:?}");
    let action = Action::read();
    let mut used = 0;
    for block in blocks {
        let documents = Yaml::load_from_str(block).unwrap_or_else(|e| panic!("{e}: {block}"));
        if !block.contains("uses: OWNER/coldtrace") {
            continue;
        }
        let steps = documents[0]["jobs"]["check"]["steps"].as_vec().expect("a list");
        let with = steps.iter().filter(|step| step.contains_mapping_key("with"));
        for (input, _) in with.flat_map(|step| map(&step["with"])) {
            assert!(action.inputs.contains_key(&input), "{input} is an input: {block}");
            used += 1;
        }
    }
    assert_eq!(used, 3);
}
