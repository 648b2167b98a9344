//! Encoders that are put, found, listed and deleted, also over a restart.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use super::*;
use crate::routing::encoder::registry::{
    ENCODERS_MAX, Encoders, LoadReport, MODEL_DIR_BYTES_MAX, NAME_BYTES_MAX, State,
};
use crate::store::Store;

/// A data folder and a models folder with a/model in it.
struct Folders {
    data: TempDir,
    models: TempDir,
}

impl Folders {
    fn new() -> Self {
        let folders = Self {
            data: TempDir::new().unwrap(),
            models: TempDir::new().unwrap(),
        };
        folders.add("a/model");
        folders
    }

    fn add(&self, place: &str) {
        let folder = self.models.path().join(place);
        fs::create_dir_all(&folder).unwrap();
        for name in ["config.json", "model.safetensors"] {
            let bytes = fs::read(models().join("qwen2-f16").join(name)).unwrap();
            fs::write(folder.join(name), bytes).unwrap();
        }
    }

    fn open(&self) -> (Encoders, LoadReport) {
        self.open_with(Some(self.models.path()))
    }

    fn open_with(&self, models_dir: Option<&Path>) -> (Encoders, LoadReport) {
        let (store, _) = Store::open(self.data.path()).unwrap();
        Encoders::open(Arc::new(store), models_dir).unwrap()
    }
}

/// Name, place and problem of each.
fn listed(encoders: &Encoders) -> Vec<(String, String, String)> {
    let list = encoders.list();
    let entry = |encoder: &Arc<registry::Registered>| {
        let problem = match &encoder.state {
            State::Works(_) => String::new(),
            State::Broken(problem) => problem.clone(),
        };
        (
            encoder.name.to_string(),
            encoder.model_dir.to_string(),
            problem,
        )
    };
    list.iter().map(entry).collect()
}

fn entry(name: &str, place: &str, problem: &str) -> (String, String, String) {
    (name.into(), place.into(), problem.into())
}

#[test]
fn what_was_put_is_there_after_a_restart_until_it_is_deleted() {
    let folders = Folders::new();
    folders.add("b");
    let (encoders, report) = folders.open();
    assert_eq!(report, LoadReport::default());
    assert!(!encoders.put("second", "b").unwrap().replaced);
    assert!(!encoders.put("first", "b").unwrap().replaced);
    assert!(encoders.put("first", "a/../a/model/").unwrap().replaced);
    let both = [entry("first", "a/model", ""), entry("second", "b", "")];
    assert_eq!(listed(&encoders), both);
    drop(encoders);

    let (encoders, report) = folders.open();
    assert_eq!((report.working, report.broken, report.damaged), (2, 0, 0));
    assert_eq!(listed(&encoders), both);
    assert!(encoders.find("first").is_some() && encoders.find("third").is_none());
    assert!(encoders.delete("first").unwrap());
    assert!(!encoders.delete("first").unwrap());
    assert!(encoders.find("first").is_none());
    drop(encoders);
    assert_eq!(listed(&folders.open().0), both[1..]);
}

#[test]
fn an_absolute_path_below_the_models_folder_is_taken_from_there() {
    let folders = Folders::new();
    folders.add(".");
    let (encoders, _) = folders.open();
    let absolute = folders.models.path().join("a/model");
    let put = encoders
        .put("absolute", absolute.to_str().unwrap())
        .unwrap();
    assert_eq!(&*put.encoder.model_dir, "a/model");
    let put = encoders.put("itself", ".").unwrap();
    assert_eq!(&*put.encoder.model_dir, ".");
    drop(encoders);
    assert_eq!(folders.open().1.working, 2);
}

#[test]
fn a_link_is_followed_when_it_is_put() {
    let folders = Folders::new();
    folders.add("b");
    let link = folders.models.path().join("latest");
    symlink("a/model", &link).unwrap();
    let (encoders, _) = folders.open();
    encoders.put("latest", "latest").unwrap();
    fs::remove_file(&link).unwrap();
    symlink("b", &link).unwrap();
    drop(encoders);
    assert_eq!(listed(&folders.open().0), [entry("latest", "a/model", "")]);
}

#[test]
fn folders_elsewhere_and_names_beyond_their_limits_are_refused() {
    let folders = Folders::new();
    let elsewhere = Folders::new();
    let outside = elsewhere.models.path().join("a/model");
    symlink(&outside, folders.models.path().join("link")).unwrap();
    // A neighbour whose name begins like the models folder's.
    let neighbour = format!("{}-x", folders.models.path().display());
    fs::create_dir(&neighbour).unwrap();
    let (encoders, _) = folders.open();
    let check = |name: &str, place: &str, expected: &str| {
        let refused = encoders.put(name, place).unwrap_err();
        assert_eq!(refused.to_string(), expected, "{place}");
    };
    let below = "model_dir: no such folder below the server's models folder";
    let outside = outside.to_str().unwrap();
    for place in [
        outside, "link", "..", "../..", "/", "/nowhere", "nowhere", "a\0b", &neighbour,
    ] {
        check("name", place, below);
    }
    fs::remove_dir(&neighbour).unwrap();
    check("name", "a/model/config.json", below);
    check(
        "name",
        "a",
        "model_dir: config.json: cannot find: No such file or directory (os error 2)",
    );
    check("", "a/model", "name: 0 bytes, must be 1 to 128");
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    check(&long, "a/model", "name: 129 bytes, must be 1 to 128");
    check("name", "", "model_dir: 0 bytes, must be 1 to 4096");
    let long = "d".repeat(MODEL_DIR_BYTES_MAX + 1);
    check("name", &long, "model_dir: 4097 bytes, must be 1 to 4096");
    assert_eq!(listed(&encoders), []);
    assert!(encoders.put(&long[..NAME_BYTES_MAX], "a/model").is_ok());
}

#[test]
fn without_a_models_folder_nothing_is_put_and_what_was_put_is_broken() {
    let folders = Folders::new();
    folders.open().0.put("name", "a/model").unwrap();
    let (encoders, report) = folders.open_with(None);
    let problem = "the server reads no models: start it with --models-dir";
    assert_eq!(report.broken, 1);
    assert_eq!(listed(&encoders), [entry("name", "a/model", problem)]);
    assert!(encoders.find("name").is_none());
    let refused = encoders.put("other", "a/model").unwrap_err();
    assert_eq!(refused.to_string(), problem);
}

#[test]
fn a_folder_that_breaks_is_listed_with_its_problem_and_the_rest_stays_up() {
    let folders = Folders::new();
    folders.add("b");
    let (encoders, _) = folders.open();
    encoders.put("breaks", "a/model").unwrap();
    encoders.put("stays", "b").unwrap();
    drop(encoders);
    let config = folders.models.path().join("a/model/config.json");
    let whole = fs::read(&config).unwrap();
    fs::write(&config, "{}").unwrap();

    let (encoders, report) = folders.open();
    assert_eq!((report.working, report.broken), (1, 1));
    let problem = "model_dir: config.json: architectures: none is named";
    assert_eq!(
        listed(&encoders),
        [entry("breaks", "a/model", problem), entry("stays", "b", "")]
    );
    assert!(encoders.find("breaks").is_none() && encoders.find("stays").is_some());
    // Mended and put again, it works.
    fs::write(&config, whole).unwrap();
    assert!(encoders.put("breaks", "a/model").unwrap().replaced);
    assert!(encoders.find("breaks").is_some());
}

#[test]
fn a_models_folder_that_is_none_stops_the_start() {
    let folders = Folders::new();
    let (store, _) = Store::open(folders.data.path()).unwrap();
    let store = Arc::new(store);
    for place in ["nowhere", "a/model/config.json"] {
        let path = folders.models.path().join(place);
        let refused = Encoders::open(Arc::clone(&store), Some(&path)).unwrap_err();
        let expected = format!("cannot use the models folder {}", path.display());
        assert!(refused.to_string().starts_with(&expected), "{refused}");
    }
}

#[test]
fn a_full_registry_takes_only_names_that_are_there() {
    let folders = Folders::new();
    let (encoders, _) = folders.open();
    for number in 0..ENCODERS_MAX {
        encoders.put(&number.to_string(), "a/model").unwrap();
    }
    let refused = encoders.put("one more", "a/model").unwrap_err();
    assert_eq!(refused.to_string(), "the server keeps at most 64 encoders");
    assert!(encoders.put("0", "a/model").unwrap().replaced);
}
