//! Container images: assembled without a daemon, and run here as a runtime would run them, in namespaces, on a read-only
//! root, as a user that owns nothing but its data folder.

use planforge_tests::{
    eventually, models,
    process::{self, Process, planforge},
    release::{python, ran, root},
};
use serde_json::Value;
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

const USER: u32 = 65_532;

/// Whether images can be made and run here; else why not, as a word.
fn able() -> bool {
    let is_debian = ["/usr/bin/apt-get", "/usr/bin/dpkg-deb"].iter().all(|program| Path::new(program).is_file());
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let may_mount = is_root
        && Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "true"])
            .output()
            .is_ok_and(|o| o.status.success());
    if !is_debian || !may_mount {
        planforge_skipped::skipped(format_args!("images are made on Debian and run here by root, in namespaces"));
    }
    is_debian && may_mount
}

struct Image {
    layout: PathBuf,
    config: Value,
}

impl Image {
    fn build(kind: &str, out: &Path, more: &[&str]) -> Self {
        let packages = root().join("target/image-packages");
        let mut command = python(&["deploy/images/build.py", kind]);
        // Symbols for debuggers would be most of a test's image.
        let binary = out.with_extension("planforge");
        if !Command::new("strip").arg("-o").arg(&binary).arg(planforge()).status().is_ok_and(|done| done.success()) {
            fs::copy(planforge(), &binary).unwrap();
        }
        command.arg(binary).arg("--out").arg(out).arg("--packages").arg(packages);
        ran(command.args(["--epoch", "1700000000", "--compress", "0"]).args(more));
        let mut image = Self { layout: out.to_owned(), config: Value::Null };
        let index: Value = serde_json::from_slice(&fs::read(out.join("index.json")).unwrap()).unwrap();
        let manifest: Value = image.document(&index["manifests"][0]["digest"]);
        image.config = image.document(&manifest["config"]["digest"]);
        image.config["layers"] = manifest["layers"].clone();
        image
    }

    fn blob(&self, digest: &Value) -> PathBuf {
        let digest = digest.as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("a digest");
        self.layout.join("blobs/sha256").join(digest)
    }

    fn document(&self, digest: &Value) -> Value {
        serde_json::from_slice(&fs::read(self.blob(digest)).unwrap()).unwrap()
    }

    fn unpack(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        for layer in self.config["layers"].as_array().expect("layers") {
            ran(Command::new("tar")
                .args(["--numeric-owner", "-xpf"])
                .arg(self.blob(&layer["digest"]))
                .arg("-C")
                .arg(folder));
        }
    }

    /// A command in the image's root, which is read-only, as its user and with its environment.
    fn command(&self, folder: &Path, data: &Path, words: &[&str], more: &[(&str, &str)]) -> Command {
        let config = &self.config["config"];
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let script = r#"
            root=$1 data=$2; shift 2
            mount --bind "$root" "$root"
            mount --bind "$data" "$root/data"
            mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
            mount -t tmpfs -o mode=1777 tmpfs "$root/run/lock/planforge"
            mount -t proc proc "$root/proc"
            mount --rbind /sys "$root/sys"
            mount -o remount,ro,bind "$root"
            if touch "$root/usr/touched" 2>/dev/null; then echo "the root can be written to" >&2; exit 9; fi
            exec chroot --userspec="$USERSPEC" "$root" "$@"
        "#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh"]);
        command.arg(folder).arg(data).args(texts(&config["Entrypoint"])).args(words);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("USERSPEC", config["User"].as_str().unwrap());
        for variable in texts(&config["Env"]) {
            let (name, value) = variable.split_once('=').expect("NAME=VALUE");
            command.env(name, value);
        }
        command.envs(more.iter().copied());
        command
    }
}

/// A folder that the image's user owns.
fn owned(folder: &Path) -> &Path {
    fs::create_dir_all(folder).unwrap();
    chown(folder, Some(USER), Some(USER)).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

#[test]
fn a_coordinator_and_an_agent_work_in_their_images() {
    if !able() {
        return;
    }
    let work = tempfile::Builder::new().prefix("planforge-images-").tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    let coordinator = Image::build("coordinator", &at("coordinator"), &[]);
    // The same bytes again, and upon another image, which stands for that of CUDA.
    let again = Image::build("coordinator", &at("again"), &[]);
    assert_eq!(coordinator.config, again.config);
    let agent = Image::build("agent", &at("agent"), &["--base", at("coordinator").to_str().unwrap()]);
    let layers = |image: &Image| image.config["rootfs"]["diff_ids"].as_array().unwrap().clone();
    assert_eq!((layers(&coordinator).len(), layers(&agent).len()), (1, 2));
    assert_eq!(layers(&agent)[0], layers(&coordinator)[0]);
    let inside: Value = serde_json::from_slice(&fs::read(at("coordinator.cdx.json")).unwrap()).unwrap();
    let components = inside["components"].as_array().unwrap();
    assert!(components.iter().any(|c| c["name"] == "libc6" && c["version"].is_string()), "{inside}");

    for (image, name) in [(&coordinator, "c"), (&agent, "a")] {
        image.unpack(&at(name));
        assert!(!at(name).join("usr/bin/sh").exists(), "no shell");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let (data, state) = (at("data"), at("state"));
    let health: Vec<String> =
        serde_json::from_value(coordinator.config["config"]["Healthcheck"]["Test"].clone()).unwrap();
    assert_eq!(health[..2], ["CMD", "/usr/bin/planforge"]);
    let words: Vec<&str> = health[2..].iter().map(String::as_str).collect();
    owned(&data);
    let early = coordinator.command(&at("c"), &data, &words, &[]).output().unwrap();
    assert!(!early.status.success(), "nothing runs yet: {early:?}");
    let serve = coordinator.command(&at("c"), &data, &["coordinator", "--listen", &listen], &[]);
    let _coordinator = Process::start("coordinator", work.path(), serve);
    eventually("the image's health check holds", || {
        let output = coordinator.command(&at("c"), &data, &words, &[]).output().map_err(|e| e.to_string())?;
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    });

    // As its user alone it has no token but that of the data folder, and agents get one of their own.
    let url = format!("http://{listen}");
    let home = at("home");
    fs::create_dir_all(&home).unwrap();
    let admin = fs::read_to_string(data.join("admin.token")).unwrap();
    let cli = |words: &[&str]| {
        let mut command = process::command(&home);
        command.env("PLANFORGE_SERVER", &url).env("PLANFORGE_TOKEN", admin.trim()).args(words);
        command
    };
    let made = process::run_json(cli(&["token", "create", "rack-1", "--role", "agent", "--json"]));
    let secret = made["secret"].as_str().expect("a secret");
    let more = [("PLANFORGE_SERVER", url.as_str()), ("PLANFORGE_TOKEN", secret)];
    let join = agent.command(&at("a"), owned(&state), &["agent", "--state", "/data", "--name", "rack-1"], &more);
    let _agent = Process::start("agent", work.path(), join);
    let model = models::convolutions(&at("net.onnx"), 2, 8, 10, 7);
    eventually("the agent joins", || {
        let devices = process::run_json(cli(&["devices", "--json"]));
        if devices["devices"][0]["online"] == true { Ok(()) } else { Err(devices.to_string()) }
    });
    let reply =
        process::run_json(cli(&["submit", model.to_str().unwrap(), "--sku", "cpu-x86-64-v2", "--wait", "--json"]));
    assert_eq!(reply["jobs"][0]["state"], "succeeded", "{reply}");
    assert_eq!(fs::metadata(data.join("farm.db")).unwrap().uid(), USER);
}
