//! Every payload of the fixtures decodes to what its JSON says, or is refused as it should be.

#[cfg(test)]
mod fixtures {
    use std::{fs, path::PathBuf};

    use kvatlas_events::{
        event::{Adapter, Batch, EngineHash, Event, Extra, Kind, Medium, Rejected, Stored},
        wire::{DecodeError, decode},
    };
    use serde_json::Value;

    /// What becomes of a fixture's events: understood, of unknown type, malformed.
    type Counts = (usize, u32, u32);

    const BATCHES: [(&str, Counts); 31] = [
        ("bad_dup_hash", (0, 0, 1)),
        ("bad_len_mismatch", (1, 0, 0)),
        ("bad_orphan_child", (1, 0, 0)),
        ("bad_self_parent", (0, 0, 1)),
        ("sglang_array_0512", (3, 0, 0)),
        ("sglang_map_0523", (3, 0, 0)),
        ("sglang_map_eagle_bigram", (1, 0, 0)),
        ("sglang_map_salt_lora", (1, 0, 0)),
        ("sglang_map_short_page", (1, 0, 0)),
        ("vllm_array_v0230_full", (3, 0, 0)),
        ("vllm_array_v0230_swa", (1, 0, 0)),
        ("vllm_array_v085", (2, 0, 0)),
        ("vllm_fullmap_batch_dev", (1, 0, 0)),
        ("vllm_map_batch_2elem", (1, 0, 0)),
        ("vllm_map_batch_no_rank", (1, 0, 0)),
        ("vllm_map_bytes_hash", (2, 0, 0)),
        ("vllm_map_cleared", (1, 0, 0)),
        ("vllm_map_cpu_tier", (2, 0, 0)),
        ("vllm_map_dp3", (1, 0, 0)),
        ("vllm_map_hybrid_attn_last", (4, 0, 0)),
        ("vllm_map_hybrid_mamba_last", (4, 0, 0)),
        ("vllm_map_hybrid_mamba_removed", (1, 0, 0)),
        ("vllm_map_lookahead", (1, 0, 0)),
        ("vllm_map_lora_salt_mm", (1, 0, 0)),
        ("vllm_map_offload_bare", (1, 0, 0)),
        ("vllm_map_removed", (1, 0, 0)),
        ("vllm_map_stored_child", (1, 0, 0)),
        ("vllm_map_stored_min", (1, 0, 0)),
        ("vllm_map_swa", (1, 0, 0)),
        ("vllm_map_unknown_event", (1, 1, 0)),
        ("vllm_map_unknown_field", (1, 0, 0)),
    ];

    const STREAMS: [(&str, usize); 2] = [
        ("full-attention-bs32", 7),
        ("sliding-window-hybrid-bs32", 18),
    ];

    #[test]
    fn every_batch_is_what_its_json_says() {
        for (name, (understood, unknown, malformed)) in BATCHES {
            let bytes = payload(name);
            let batch = decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(batch.events.len(), understood, "{name}");
            let rejected = (batch.rejected.unknown, batch.rejected.malformed);
            assert_eq!(rejected, (unknown, malformed), "{name}");
            let said: Value =
                serde_json::from_slice(&read(&format!("decoded/{name}.json"))).unwrap();
            check(name, &batch, &said["decoded"]);
        }
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        let at_byte = |name: &str| decode(&payload(name)).unwrap_err();
        assert_eq!(at_byte("bad_truncated"), DecodeError::Truncated { at: 17 });
        assert!(matches!(
            at_byte("bad_not_batch"),
            DecodeError::NotBatch { at: 0, .. }
        ));
    }

    #[test]
    fn no_fixture_is_forgotten() {
        let found = fs::read_dir(directory().join("payloads")).unwrap();
        let found = found.filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|end| end == "msgpack")
        });
        assert_eq!(found.count(), BATCHES.len() + 2);
    }

    #[test]
    fn streams_of_a_running_engine_decode_wholly() {
        for (stream, events) in STREAMS {
            let mut understood = 0;
            for place in 0..6 {
                let bytes = payload(&format!("vllm-0.32-real/{stream}/{place:03}"));
                let batch = decode(&bytes).unwrap();
                assert_eq!(batch.rejected, Rejected::default(), "{stream} {place}");
                assert_eq!(batch.rank, Some(0));
                understood += batch.events.len();
            }
            assert_eq!(understood, events, "{stream}");
        }
    }

    #[test]
    fn the_hash_of_bytes_is_the_hash_of_integers() {
        let [bytes, integers] = ["vllm_map_bytes_hash", "vllm_map_stored_min"].map(payload);
        let [bytes, integers] = [&bytes, &integers].map(|payload| decode(payload).unwrap());
        assert_eq!(bytes.events[0], integers.events[0]);
    }

    #[test]
    fn keys_beside_the_tokens_are_untangled() {
        let bytes = payload("vllm_map_lora_salt_mm");
        let stored = only_stored(&bytes);
        let item = "a".repeat(64);
        assert_eq!(stored.adapter, Some(Adapter::Name("adapter-a")));
        let first = Extra {
            salt: Some("tenant-a"),
            items: vec![(&item, 3)],
        };
        assert_eq!(
            stored.extra,
            [
                first,
                Extra {
                    salt: None,
                    items: vec![(&item, -13)]
                }
            ]
        );

        let bytes = payload("sglang_map_salt_lora");
        let stored = only_stored(&bytes);
        assert_eq!(
            (stored.salt, stored.medium),
            (Some("tenant-a"), Medium::Host)
        );
    }

    #[test]
    fn tokens_beyond_the_blocks_are_told_apart() {
        let bytes = payload("sglang_map_eagle_bigram");
        let stored = only_stored(&bytes);
        assert_eq!(stored.tokens, (1000..1016).collect::<Vec<_>>());
        assert_eq!(stored.bigram_end, Some(1016));

        let bytes = payload("vllm_map_lookahead");
        assert_eq!(only_stored(&bytes).lookahead, [1032]);
    }

    fn directory() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
    }

    fn payload(name: &str) -> Vec<u8> {
        read(&format!("payloads/{name}.msgpack"))
    }

    fn read(name: &str) -> Vec<u8> {
        fs::read(directory().join(name)).unwrap()
    }

    fn only_stored(payload: &[u8]) -> Stored<'_> {
        let mut batch = decode(payload).unwrap();
        match batch.events.pop() {
            Some(Event::Stored(stored)) => stored,
            other => panic!("{other:?}"),
        }
    }

    fn check(name: &str, batch: &Batch<'_>, said: &Value) {
        let part = |place: usize, field: &str| said.get(place).unwrap_or(&said[field]);
        assert_eq!(Some(batch.sent_at_s), part(0, "ts").as_f64(), "{name}");
        let rank = part(2, "data_parallel_rank").as_u64();
        assert_eq!(batch.rank.map(u64::from), rank, "{name}");
        if batch.rejected.malformed > 0 {
            return;
        }
        let said = part(1, "events").as_array().unwrap().iter().map(named);
        let said: Vec<_> = said
            .filter(|event| event["type"] != "BlockMigrated")
            .collect();
        assert_eq!(said.len(), batch.events.len(), "{name}");
        for (event, said) in batch.events.iter().zip(&said) {
            match event {
                Event::Stored(stored) => check_stored(name, stored, said),
                Event::Removed(removed) => {
                    assert_eq!(said["type"], "BlockRemoved", "{name}");
                    assert_eq!(removed.hashes, hashes(&said["block_hashes"]), "{name}");
                    assert_eq!(removed.medium, medium(&said["medium"]), "{name}");
                    assert_eq!(removed.group.map(u64::from), said["group_idx"].as_u64());
                }
                Event::Cleared => assert_eq!(said["type"], "AllBlocksCleared", "{name}"),
            }
        }
    }

    fn check_stored(name: &str, stored: &Stored<'_>, said: &Value) {
        assert_eq!(said["type"], "BlockStored", "{name}");
        assert_eq!(stored.hashes, hashes(&said["block_hashes"]), "{name}");
        assert_eq!(stored.parent, hash(&said["parent_block_hash"]), "{name}");
        let tokens: Vec<_> = stored
            .tokens
            .iter()
            .map(|&token| Some(u64::from(token)))
            .collect();
        let said_tokens = said["token_ids"].as_array().unwrap().iter();
        let first = |said: &Value| said.as_u64().or_else(|| said[0].as_u64());
        assert_eq!(tokens, said_tokens.map(first).collect::<Vec<_>>(), "{name}");
        assert_eq!(
            Some(u64::from(stored.block_size)),
            said["block_size"].as_u64(),
            "{name}"
        );
        assert_eq!(stored.medium, medium(&said["medium"]), "{name}");
        let adapter = said["lora_name"].as_str().map(Adapter::Name);
        assert_eq!(
            stored.adapter,
            adapter.or(said["lora_id"].as_i64().map(Adapter::Id))
        );
        assert_eq!(stored.salt, said["cache_salt"].as_str(), "{name}");
        let plain = said["extra_keys"]
            .as_array()
            .is_none_or(|all| all.iter().all(Value::is_null));
        assert_eq!(stored.extra.is_empty(), plain, "{name}");
        assert_eq!(
            stored.group.map(u64::from),
            said["group_idx"].as_u64(),
            "{name}"
        );
        assert_eq!(stored.kind, kind(&said["kv_cache_spec_kind"]), "{name}");
        assert_eq!(
            stored.lookahead.is_empty(),
            said["lookahead_token_ids"].is_null(),
            "{name}"
        );
    }

    /// A positional event with the names that its places stand for.
    fn named(event: &Value) -> Value {
        let Value::Array(places) = event else {
            return event.clone();
        };
        let stored = [
            "type",
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
            "kv_cache_spec_sliding_window",
        ];
        let removed = ["type", "block_hashes", "medium", "group_idx"];
        let names = if places[0] == "BlockStored" {
            &stored[..]
        } else {
            &removed[..]
        };
        names
            .iter()
            .map(|&name| name.to_owned())
            .zip(places.iter().cloned())
            .collect()
    }

    fn hashes(said: &Value) -> Vec<EngineHash> {
        said.as_array().unwrap().iter().filter_map(hash).collect()
    }

    fn hash(said: &Value) -> Option<EngineHash> {
        if let Some(hex) = said["$bytes"].as_str() {
            let last = &hex[hex.len() - 16..];
            return Some(EngineHash(u64::from_str_radix(last, 16).unwrap()));
        }
        let negative = said.as_i64().map(i64::cast_unsigned);
        said.as_u64().or(negative).map(EngineHash)
    }

    fn medium(said: &Value) -> Medium {
        match said.as_str() {
            None | Some("GPU") => Medium::Device,
            Some("CPU" | "CPU_PINNED") => Medium::Host,
            Some(_) => Medium::Disk,
        }
    }

    fn kind(said: &Value) -> Kind {
        match said.as_str() {
            None => Kind::Absent,
            Some("full_attention" | "mla_attention") => Kind::Attention,
            Some("mamba" | "sliding_window") => Kind::Other,
            Some(_) => Kind::Unknown,
        }
    }
}
