//! `-u USER`: who that is. /etc/passwd and /etc/group are read directly, since
//! a static binary cannot load the modules that getpwnam(3) asks.

/// A user to run a command as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups, the primary one included.
    pub groups: Vec<u32>,
}

impl User {
    /// Looks up a name or a numeric id.
    ///
    /// # Errors
    /// One line, when there is no such user or /etc/passwd cannot be read.
    pub fn find(name: &str) -> Result<Self, String> {
        let passwd = std::fs::read_to_string("/etc/passwd")
            .map_err(|e| format!("cannot look up user {name}: /etc/passwd: {e}"))?;
        let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
        Self::parse(name, &passwd, &groups).ok_or_else(|| format!("no user {name} in /etc/passwd"))
    }

    fn parse(wanted: &str, passwd: &str, group: &str) -> Option<Self> {
        let (name, uid, gid) = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = fields.nth(1)?;
            let gid = fields.next()?;
            if name != wanted && uid != wanted {
                return None;
            }
            Some((name, uid.parse().ok()?, gid.parse().ok()?))
        })?;
        let mut groups = vec![gid];
        for line in group.lines() {
            let mut fields = line.split(':');
            let id = fields.nth(2).and_then(|g| g.parse().ok());
            let member = fields.next().is_some_and(|all| all.split(',').any(|m| m == name));
            if let (Some(id), true) = (id, member)
                && !groups.contains(&id)
            {
                groups.push(id);
            }
        }
        Some(Self { name: name.to_owned(), uid, gid, groups })
    }
}

#[cfg(test)]
mod tests {
    use super::User;

    #[test]
    fn a_user_has_the_groups_that_list_him() {
        let passwd = "root:x:0:0:r:/root:/bin/sh\nann:x:1000:1001::/home/ann:/bin/sh\n";
        let group = "ann:x:1001:\naudio:x:29:bob,ann\nvideo:x:44:bob\n";
        let ann = User { name: "ann".into(), uid: 1000, gid: 1001, groups: vec![1001, 29] };
        assert_eq!(User::parse("ann", passwd, group), Some(ann.clone()));
        assert_eq!(User::parse("1000", passwd, group), Some(ann));
        assert_eq!(User::parse("eve", passwd, group), None);
        assert_eq!(User::parse("", "broken\n:::\n", ""), None);
    }
}
