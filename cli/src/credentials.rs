//! Which credentials go to which server: the one place that decides.
//!
//! Whoever names a server gets what is sent there, and a project file is written by whoever wrote the repository. So a
//! credential is only sent to a server that its owner meant:
//!
//! | credential from | goes to a server named by |
//! |---|---|
//! | `--token`, `--token-file` | flag, environment, user file; a project file only where the user has logged in |
//! | environment | flag, environment |
//! | `planforge login` | anybody: it is kept for exactly this server |
//! | user file | flag, environment, user file |
//!
//! That is also the order in which they are asked. The CA file and `insecure`, which say whom to take for the server,
//! follow the same rule, but for the environment's, which hold for the user file's server too. A project file that names
//! the same server as the user file changes nothing about who named it.
//!
//! Where there are credentials and none is meant for the server, nothing is sent: the command ends before it connects.

use crate::{
    failure::Failure,
    logins::{self, Login},
    settings::{self, Key, Origin, Settings, Value},
};
use planforge_client::{Endpoint, EndpointOptions, Token};
use planforge_proto::ErrorCode;
use planforge_types::private_file::refuse_exposed;
use std::{fs, path::Path};

/// Largest token file that is read: a token is a line.
const TOKEN_FILE_MAX_BYTES: u64 = 64 * 1024;

/// Where a credential can come from, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Flag,
    Environment,
    Login,
    UserFile,
}

const SOURCES: [Source; 4] = [Source::Flag, Source::Environment, Source::Login, Source::UserFile];

impl Source {
    /// The layer of settings that it is; a login is none.
    fn origin(self) -> Option<Origin> {
        match self {
            Self::Flag => Some(Origin::Flag),
            Self::Environment => Some(Origin::Environment),
            Self::Login => None,
            Self::UserFile => Some(Origin::UserFile),
        }
    }

    /// Whether a secret from here is meant for a server that `server` named.
    fn may_reach(self, server: Origin, logged_in: bool) -> bool {
        match (self, server) {
            (Self::Login, _) | (_, Origin::Flag | Origin::Environment) => true,
            (Self::Flag | Self::UserFile, Origin::UserFile) => true,
            (Self::Flag, Origin::ProjectFile) => logged_in,
            (Self::Environment, Origin::UserFile) | (Self::Environment | Self::UserFile, Origin::ProjectFile) => false,
        }
    }

    /// Whether a CA file or `insecure` from here holds for a server that `server` named.
    fn may_vouch(self, server: Origin, logged_in: bool) -> bool {
        self.may_reach(server, logged_in) || (self == Self::Environment && server == Origin::UserFile)
    }

    /// What the user calls a setting from here.
    fn words(self, key: Key) -> String {
        let row = settings::row(key);
        match self {
            Self::Flag => row.flag.to_owned(),
            Self::Environment => row.env.to_owned(),
            Self::Login | Self::UserFile => format!("'{}' in your configuration file", row.name),
        }
    }
}

/// The server of a command, who named it, and what its user keeps for it.
#[derive(Debug)]
struct Server<'a> {
    url: &'a str,
    named_by: Origin,
    login: Option<Login>,
}

impl<'a> Server<'a> {
    /// `None` where commands go to this machine's own farm.
    fn of(settings: &'a Settings) -> Result<Option<Self>, Failure> {
        let Some(Value { text: url, origin }) = settings.value(Key::Server) else { return Ok(None) };
        let login = match logins::key(url) {
            Some(key) => logins::read()?.remove(&key),
            None => None,
        };
        Ok(Some(Self { url, named_by: named_by(settings, url, *origin), login }))
    }

    /// The first of `keys` that somebody set and that is meant for this server.
    fn pick<T>(
        &self,
        settings: &'a Settings,
        keys: &[Key],
        may: fn(Source, Origin, bool) -> bool,
        use_setting: impl Fn(Key, &'a str) -> Result<T, Failure>,
        use_login: impl Fn(&Login) -> Option<Result<T, Failure>>,
    ) -> Result<Option<T>, Failure> {
        let mut withheld = None;
        for source in SOURCES {
            let Some(origin) = source.origin() else {
                match self.login.as_ref().and_then(&use_login) {
                    Some(kept) => return kept.map(Some),
                    None => continue,
                }
            };
            let said = keys.iter().find_map(|key| settings.said_by(origin, *key).map(|text| (*key, text)));
            let Some((key, text)) = said else { continue };
            if may(source, self.named_by, self.login.is_some()) {
                return use_setting(key, text).map(Some);
            }
            withheld = withheld.or(Some((source, key)));
        }
        match withheld {
            // Who has logged in has said all about this server.
            Some((source, key)) if self.login.is_none() => Err(self.withheld(source, key)),
            _ => Ok(None),
        }
    }

    fn withheld(&self, source: Source, key: Key) -> Failure {
        let by = match self.named_by {
            Origin::ProjectFile => settings::PROJECT_FILE,
            _ => "your configuration file",
        };
        let message = format!("{} is not used for {}: only {by} names that server", source.words(key), self.url);
        Failure::new(ErrorCode::Unauthenticated, message).hint(format!(
            "set PLANFORGE_SERVER={url} to say that you trust it, or keep a token for it with: planforge login {url}",
            url = self.url
        ))
    }
}

/// Who named the server: a project file that repeats what the user file says adds nothing.
fn named_by(settings: &Settings, url: &str, origin: Origin) -> Origin {
    let own = settings.said_by(Origin::UserFile, Key::Server).and_then(logins::key);
    match origin {
        Origin::ProjectFile if own.is_some() && own == logins::key(url) => Origin::UserFile,
        other => other,
    }
}

/// The coordinator that the settings name; `None`: this machine's own farm.
pub fn endpoint(settings: &Settings) -> Result<Option<Endpoint>, Failure> {
    let Some(server) = Server::of(settings)? else { return Ok(None) };
    let ca_file = server.pick(
        settings,
        &[Key::Ca],
        Source::may_vouch,
        |_, text| Ok(text.into()),
        |login| login.ca_file.clone().map(Ok),
    )?;
    let asked = settings.value(Key::Insecure).map_or(Ok(false), |value| settings::is_on(&value.text))?;
    let allowed = |_, text| settings::is_on(text);
    // Nobody logs in over http:// beyond this machine without having allowed it.
    let insecure = server.login.is_some()
        || (asked && server.pick(settings, &[Key::Insecure], Source::may_vouch, allowed, |_| None)?.unwrap_or(false));
    let options = EndpointOptions { ca_file, insecure };
    Endpoint::parse(server.url, &options).map(Some).map_err(|e| Failure::usage(e.to_string()))
}

/// The token that goes to the server of [`endpoint`].
pub fn token(settings: &Settings) -> Result<Option<Token>, Failure> {
    let Some(server) = Server::of(settings)? else { return Ok(None) };
    let allow_readable_key = settings.switch(Key::AllowReadable)?;
    let of_setting = |key, text: &str| of_setting(key, text, allow_readable_key);
    server.pick(settings, &[Key::Token, Key::TokenFile], Source::may_reach, of_setting, |login| {
        Some(Token::new(&login.token).map_err(Into::into))
    })
}

/// The token that one setting holds or names.
fn of_setting(key: Key, text: &str, allow_readable_key: bool) -> Result<Token, Failure> {
    let secret = match key {
        Key::TokenFile => read_token(Path::new(text), allow_readable_key)?,
        _ => text.to_owned(),
    };
    Ok(Token::new(&secret)?)
}

/// Reads a token file, which nobody else may be able to read unless that is allowed.
pub fn read_token(path: &Path, allow_readable_key: bool) -> Result<String, Failure> {
    read_secret("token file", path, allow_readable_key)
}

/// Reads a file with one line that is nobody else's business, of that kind.
pub fn read_secret(kind: &str, path: &Path, allow_readable_key: bool) -> Result<String, Failure> {
    let unread = |error| Failure::io(&format!("read the {kind}"), path, &error);
    let bytes = fs::metadata(path).map_err(unread)?.len();
    if !allow_readable_key {
        refuse_exposed(path).map_err(|exposed| Failure::usage(exposed.to_string()).hint(exposed.hint()))?;
    }
    if bytes > TOKEN_FILE_MAX_BYTES {
        return Err(Failure::usage(format!("{} is no {kind}: it has {bytes} bytes", path.display())));
    }
    let text = fs::read_to_string(path).map_err(unread)?;
    match text.trim() {
        "" => Err(Failure::usage(format!("the {kind} {} is empty", path.display()))),
        secret => Ok(secret.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Layer;
    use std::os::unix::fs::PermissionsExt as _;

    const URL: &str = "https://farm.example:7400";

    /// Where the server was named, and what there is to say who the user is: every pair of the two.
    fn settings(server: Origin, credentials: &[(Origin, Key, &str)]) -> Settings {
        let mut layers = [const { Layer::new() }; 4];
        let index = |origin| match origin {
            Origin::Flag => 0,
            Origin::Environment => 1,
            Origin::ProjectFile => 2,
            Origin::UserFile => 3,
        };
        layers[index(server)].insert(Key::Server, URL.into());
        for (origin, key, text) in credentials {
            layers[index(*origin)].insert(*key, (*text).into());
        }
        let [flags, environment, project, user] = layers;
        Settings::layered(flags, environment, project, user)
    }

    fn server<'a>(settings: &'a Settings, login: bool) -> Server<'a> {
        let Value { text: url, origin } = settings.value(Key::Server).unwrap();
        let login = login.then(|| Login { token: "login".into(), ca_file: Some("/login.pem".into()) });
        Server { url, named_by: named_by(settings, url, *origin), login }
    }

    /// The secret that would be sent, or the exit code.
    fn sent(settings: &Settings, login: bool) -> Result<Option<String>, u8> {
        let picked = server(settings, login).pick(
            settings,
            &[Key::Token, Key::TokenFile],
            Source::may_reach,
            |_, text| Ok(text.to_owned()),
            |login| Some(Ok(login.token.clone())),
        );
        picked.map_err(|failure| {
            assert!(failure.hint.contains("PLANFORGE_SERVER=https://farm.example:7400"), "{}", failure.hint);
            failure.exit_code
        })
    }

    #[test]
    fn every_credential_goes_only_where_its_owner_meant_it_to_go() {
        use Origin::{Environment, Flag, ProjectFile, UserFile};
        // Server named by, credential from, what happens without and with a login for that server.
        let table: [(Origin, Origin, Option<&str>, &str); 12] = [
            (Flag, Flag, Some("it"), "it"),
            (Flag, Environment, Some("it"), "it"),
            (Flag, UserFile, Some("it"), "login"),
            (Environment, Flag, Some("it"), "it"),
            (Environment, Environment, Some("it"), "it"),
            (Environment, UserFile, Some("it"), "login"),
            (ProjectFile, Flag, None, "it"),
            (ProjectFile, Environment, None, "login"),
            (ProjectFile, UserFile, None, "login"),
            (UserFile, Flag, Some("it"), "it"),
            (UserFile, Environment, None, "login"),
            (UserFile, UserFile, Some("it"), "login"),
        ];
        for key in [Key::Token, Key::TokenFile] {
            for (named_by, from, alone, logged_in) in table {
                let settings = settings(named_by, &[(from, key, "it")]);
                let expected = alone.map(|text| Some(text.to_owned())).ok_or(5);
                assert_eq!(sent(&settings, false), expected, "{named_by:?} {key:?} from {from:?}");
                assert_eq!(sent(&settings, true), Ok(Some(logged_in.into())), "{named_by:?} {key:?} from {from:?}");
            }
        }
        for named_by in [Flag, Environment, ProjectFile, UserFile] {
            let bare = settings(named_by, &[]);
            assert_eq!(sent(&bare, false), Ok(None));
            assert_eq!(sent(&bare, true), Ok(Some("login".into())));
        }
    }

    #[test]
    fn what_vouches_for_a_server_is_not_bent_by_a_project_file() {
        use Origin::{Environment, Flag, ProjectFile, UserFile};
        for named_by in [Flag, Environment, ProjectFile, UserFile] {
            for from in [Flag, Environment, UserFile] {
                let settings = settings(named_by, &[(from, Key::Ca, "/it.pem")]);
                let picked = |login: bool| {
                    server(&settings, login)
                        .pick(
                            &settings,
                            &[Key::Ca],
                            Source::may_vouch,
                            |_, text| Ok(text.to_owned()),
                            |login| login.ca_file.as_ref().map(|path| Ok(path.display().to_string())),
                        )
                        .map_err(|failure| failure.exit_code)
                };
                let alone = if named_by == ProjectFile { Err(5) } else { Ok(Some("/it.pem".to_owned())) };
                assert_eq!(picked(false), alone, "{named_by:?} {from:?}");
                let kept = from == UserFile || (from == Environment && named_by == ProjectFile);
                let both = if kept { "/login.pem" } else { "/it.pem" };
                assert_eq!(picked(true), Ok(Some(both.to_owned())), "{named_by:?} {from:?}");
            }
        }
    }

    #[test]
    fn a_project_file_that_repeats_the_users_own_server_changes_nothing() {
        let layer =
            |texts: &[(Key, &str)]| texts.iter().map(|(key, text)| (*key, (*text).to_owned())).collect::<Layer>();
        let user = layer(&[(Key::Server, "https://FARM.example:443/"), (Key::Token, "it")]);
        let same = layer(&[(Key::Server, "https://farm.example")]);
        let repeated = Settings::layered(Layer::new(), Layer::new(), same, user.clone());
        assert_eq!(server(&repeated, false).named_by, Origin::UserFile);
        for other in ["https://farm.example:444", "http://farm.example:443", "https://farm.example.evil", "x y"] {
            let other = Settings::layered(Layer::new(), Layer::new(), layer(&[(Key::Server, other)]), user.clone());
            assert_eq!(server(&other, false).named_by, Origin::ProjectFile);
        }
    }

    #[test]
    fn of_a_token_and_a_token_file_the_one_said_closer_to_the_command_is_taken() {
        let both =
            |token, file| settings(Origin::Flag, &[(token, Key::Token, "token"), (file, Key::TokenFile, "file")]);
        assert_eq!(sent(&both(Origin::Environment, Origin::Flag), false), Ok(Some("file".into())));
        assert_eq!(sent(&both(Origin::Flag, Origin::Environment), false), Ok(Some("token".into())));
    }

    #[test]
    fn a_token_file_is_read_and_trimmed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "  secret\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_token(&file, false).unwrap(), "secret");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let exposed = read_token(&file, false).unwrap_err();
        assert_eq!(exposed.exit_code, 2);
        assert!(
            exposed.hint.contains("chmod 600") && exposed.hint.contains("--allow-readable-key"),
            "{}",
            exposed.hint
        );
        assert_eq!(read_token(&file, true).unwrap(), "secret");
        fs::write(&file, "\n").unwrap();
        assert!(read_token(&file, true).unwrap_err().to_string().ends_with("is empty"));
        assert_eq!(of_setting(Key::Token, "\u{7}", false).unwrap_err().exit_code, 5);
    }
}
