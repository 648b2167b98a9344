//! The real embedder: a model run by ONNX Runtime, where the machine has them.

#[cfg(test)]
mod text {
    use std::{
        ffi::OsString,
        fs,
        io::Write,
        path::{Path, PathBuf},
        thread,
    };

    use kvatlas::donors::text::{
        EmbedRefusal, Embedder, ModelFiles, TextModel,
        segments::{SEGMENT_BYTES_MAX, segments},
    };

    const MODEL_VARIABLE: &str = "KVATLAS_TEST_EMBEDDING_MODEL";
    const RUNTIME_VARIABLE: &str = "KVATLAS_TEST_ONNXRUNTIME";
    /// Of the model that tests/tools/make_embedding_model.py makes for tests.
    const DIMENSIONS: usize = 32;

    /// One test after another, because a process has one runtime; the environment names it.
    #[test]
    fn a_model_embeds_text() {
        let Some(files) = files() else {
            return;
        };
        wrong_files_are_told_by_their_flag(&files);
        vectors_depend_on_the_text_alone(&files);
        late_look_ups_are_refused_and_stopping_ends_the_rest(&files);
    }

    fn wrong_files_are_told_by_their_flag(files: &ModelFiles) {
        let check = |change: &dyn Fn(&mut ModelFiles), expected: &str| {
            let folder = tempfile::tempdir().unwrap();
            copy(&files.folder, folder.path());
            let mut changed = ModelFiles {
                folder: folder.path().to_owned(),
                ..files.clone()
            };
            change(&mut changed);
            let opened = TextModel::open(&changed).map(|_| ());
            let error = opened.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        // The library is loaded by the first of these, and stays.
        let replace = |files: &ModelFiles, name: &str, text: &str| {
            fs::write(files.folder.join(name), text).unwrap();
        };
        check(
            &|files| replace(files, "model.onnx", "x"),
            "--embedding-model",
        );
        check(
            &|files| replace(files, "tokenizer.json", "{}"),
            "tokenizer.json",
        );
        check(
            &|files| replace(files, "tokenizer_config.json", "{}"),
            "model_max_length",
        );
        check(
            &|files| replace(files, "config.json", r#"{"hidden_size": 31}"#),
            "have 32 dimensions, its config.json says 31",
        );
        let elsewhere = |files: &mut ModelFiles| {
            let library = files.folder.join("libonnxruntime.so");
            fs::write(&library, "").unwrap();
            files.onnxruntime = library;
        };
        check(&elsewhere, "--onnxruntime: this process already uses");
    }

    fn vectors_depend_on_the_text_alone(files: &ModelFiles) {
        let texts: Vec<String> = (0..40)
            .map(|n| format!("text {n}, {}", "and more ".repeat(n)))
            .collect();
        let embedder = with_embedder(files, |embedder| {
            assert_eq!(embedder.dimensions(), DIMENSIONS);
            let together = embedder.embed_donor(texts.clone()).unwrap();
            assert_eq!(together.len(), texts.len());
            assert_eq!(embedder.embed_donor(texts.clone()).unwrap(), together);
            // Padding and company change nothing but the rounding.
            thread::scope(|scope| {
                let ask = |text: &String| block_on(embedder.embed_query(vec![text.clone()], 1));
                let asking = texts.iter().map(|text| scope.spawn(move || ask(text)));
                let asking: Vec<_> = asking.collect();
                for (alone, vector) in asking.into_iter().zip(&together) {
                    let alone = alone.join().unwrap().unwrap();
                    assert!(cosine(&alone[0], vector) > 0.9999);
                }
            });
            assert!(cosine(&together[0], &together[39]) < 0.9999);
            // No text is too odd or too long for it.
            let odd = [
                "",
                " ",
                "\0",
                "\u{1F600}\u{200d}",
                "漢字",
                "[PAD] [MASK] ##",
            ];
            let odd = odd.map(str::to_owned).to_vec();
            assert_eq!(embedder.embed_donor(odd).unwrap().len(), 6);
            let long = "word ".repeat(10_000);
            let cut = segments(&long, 0.0, 3);
            assert!(cut.iter().all(|segment| segment.len() <= SEGMENT_BYTES_MAX));
            let cut = cut.into_iter().map(str::to_owned).chain([long.clone()]);
            assert_eq!(embedder.embed_donor(cut.collect()).unwrap().len(), 4);
        });
        let refused = block_on(embedder.embed_query(texts, 1));
        assert_eq!(refused, Err(EmbedRefusal::Stopped));
    }

    fn late_look_ups_are_refused_and_stopping_ends_the_rest(files: &ModelFiles) {
        with_embedder(files, |embedder| {
            let late = block_on(embedder.embed_query(vec!["a".into()], 0));
            assert_eq!(late, Err(EmbedRefusal::Late));
            thread::scope(|scope| {
                // While the model works on one of them, the other is seen to wait.
                let much = || vec!["a text".repeat(40); 2_000];
                let donors = [much(), much()];
                let donors = donors.map(|texts| scope.spawn(|| embedder.embed_donor(texts)));
                while embedder.queued() == 0 {
                    thread::yield_now();
                }
                embedder.stop();
                let ends = donors.map(|donor| donor.join().unwrap().err());
                assert!(ends.contains(&Some(EmbedRefusal::Stopped)));
            });
        });
    }

    // At time 0. The embedder is stopped when it comes back.
    fn with_embedder(files: &ModelFiles, work: impl FnOnce(&Embedder)) -> Embedder {
        let model = TextModel::open(files).unwrap();
        let (embedder, worker) = Embedder::new(model, 64, || 0);
        thread::scope(|scope| {
            scope.spawn(|| worker.run());
            // Also when the work panics: the thread would otherwise never end.
            let stop = Stop(&embedder);
            work(&embedder);
            drop(stop);
        });
        embedder
    }

    struct Stop<'a>(&'a Embedder);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop();
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(work)
    }

    fn cosine(left: &[f32], right: &[f32]) -> f32 {
        left.iter().zip(right).map(|(a, b)| a * b).sum()
    }

    fn copy(from: &Path, to: &Path) {
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    // Without them the test is skipped with a line that no harness captures, or fails where
    // KVATLAS_REQUIRE_TOOLS is 1.
    fn files() -> Option<ModelFiles> {
        let given = [MODEL_VARIABLE, RUNTIME_VARIABLE].map(environment);
        if let [Some(folder), Some(onnxruntime)] = given.map(|path| path.map(PathBuf::from)) {
            return Some(ModelFiles {
                folder,
                onnxruntime,
                threads: 1,
            });
        }
        let required = environment("KVATLAS_REQUIRE_TOOLS").is_some_and(|value| value == "1");
        let missing = format!("no {MODEL_VARIABLE} and {RUNTIME_VARIABLE}");
        assert!(!required, "{missing}");
        writeln!(std::io::stderr(), "SKIPPED: {missing}").unwrap();
        None
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "tests are told about the machine by its environment, and have no flags"
    )]
    fn environment(variable: &str) -> Option<OsString> {
        std::env::var_os(variable).filter(|value| !value.is_empty())
    }
}
