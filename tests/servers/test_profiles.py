"""Profiles: commands from a Cell, what is refused before a launch, what must not leave in a stored run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from engine.errors import EngineError
from evalkit.cli import main
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.servers import identity
from evalkit.servers.launch import command, environment, launch
from evalkit.servers.profile import asked_of, forced_by_server, profile_of, refuse
from evalkit.servers.spec import ENGINES, ServerSpec

STARTED = [e for e in ENGINES if e != "openai"]
METHOD = {"trtllm": "mtp", "llamacpp": "ngram"}


def made(engine="vllm", *, k=7, quant="bf16", draft=None, prefix_cache=True, **words):
    spec = ServerSpec(engine=engine, **words)
    return Cell.make(model="org/target", k=k, quant=quant, draft=draft or METHOD.get(engine, "dspark"), batch=32,
                     prefix_cache=prefix_cache, server=spec)  # fmt: skip


def line(cell):
    assert cell.server is not None
    return command(cell, cell.server, profile_of(cell.server.engine))


def refused(cell):
    assert cell.server is not None
    method = cell.server.method if cell.k else "none"
    return refuse(cell, cell.server, profile_of(cell.server.engine), method)


@pytest.mark.parametrize("engine", STARTED)
def test_every_engine_has_a_command_of_one_cell(engine):
    cell = made(engine, k=3, tp=4, port=8123, max_model_len=4096, graph_sizes=(1, 2), args=("--last", "word"))
    words = line(cell)
    text = shlex.join(words)
    assert "org/target" in words and "8123" in words and words[-2:] == ["--last", "word"]
    assert engine == "llamacpp" or "4" in words
    refused(cell)
    plain = shlex.join(line(made(engine, k=0)))
    assert "spec" not in plain.replace("--max-seq", "") or (engine == "sglang" and "speculative" not in plain)
    assert text != shlex.join(line(made(engine, k=3, prefix_cache=False, port=8123)))


def test_llama_cpp_s_dspark_draft_and_its_forced_acceptance():
    words = line(made("llamacpp", draft="dspark", quant="float32", draft_model="draft.gguf", k=5))
    assert words[words.index("--spec-type") + 1] == "draft-dspark" and "draft.gguf" in words
    assert words[words.index("--spec-draft-n-max") + 1] == "5" and "--draft-max" not in words
    with pytest.raises(EvalkitError, match="--spec-synth-len forces acceptance"):
        refused(made("llamacpp", args=("--spec-synth-len", "3.5")))
    with pytest.raises(EvalkitError, match="LLAMA_ARG_SPEC_SYNTH_RATES forces acceptance"):
        refused(made("llamacpp", env=("LLAMA_ARG_SPEC_SYNTH_RATES=0.9",)))


def test_k_in_each_engine_s_own_counting():
    config = json.loads(line(made("vllm"))[line(made("vllm")).index("--speculative-config") + 1])
    assert config == {"method": "dspark", "num_speculative_tokens": 7}
    sglang, atom = line(made("sglang")), line(made("atom", quant="fp8"))
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == "8", "the target's own token counts there"
    assert atom[atom.index("--num-speculative-tokens") + 1] == "7" and "--method" in atom
    assert atom[atom.index("--index-cache-dtype") + 1] == "fp8"
    options = json.loads(Path(line(made("trtllm"))[-1]).read_text())
    assert options["speculative_config"] == {"decoding_type": "MTP", "num_nextn_predict_layers": 7}
    assert options["enable_iter_perf_stats"]


@pytest.mark.parametrize(("words", "said"), [
    ({"engine": "atom", "quant": "nvfp4"}, "kv=nvfp4 is not known here"),
    ({"engine": "atom", "draft": "ngram"}, "no draft method 'ngram'"),
    ({"engine": "trtllm", "draft": "dspark"}, "no draft method 'dspark'"),
    ({"engine": "atom", "k": 17}, "takes up to 16"),
    ({"engine": "vllm", "endpoint": "generate"}, "no endpoint 'generate'"),
    ({"engine": "vllm", "thinking": "off"}, "needs a chat template"),
    ({"engine": "vllm", "base_url": "http://h:1/v1", "args": ("--x",)}, "runs already"),
])  # fmt: skip
def test_what_an_engine_can_not_do_is_refused_before_it_is_started(words, said):
    with pytest.raises(EvalkitError, match=said) as e:
        refused(made(**words))
    assert e.value.fix and "\n" not in e.value.what


def test_atom_is_asked_for_the_recipe_s_bands_family_by_family():
    """The facts page, sections 0, 3.10 and 6.1: caches by option, weights by online_quant_config, the delayer by a
    variable; NVFP4's spelling is not public, so it has to be said."""
    cell = made("atom", quant="m31flash-c1-4", tp=4)
    words, found = line(cell), asked_of(cell, profile_of("atom"))
    assert [words[words.index(o) + 1] for o in ("--kv_cache_dtype", "--index-cache-dtype")] == ["fp8", "fp8"]
    config = json.loads(words[words.index("--online_quant_config") + 1])
    assert config["global_quant_config"] == "ptpc_fp8" and "*block_sparse_moe" in config["exclude_layer"]
    assert found.variables == {"ATOM_PREFILL_DECODE_INTERVAL": "20000"} and not found.unknown
    assert not asked_of(made("atom", quant="m31flash-c8-16"), profile_of("atom")).variables
    last = made("atom", quant="m31flash-c32-48", args=("--kv_cache_dtype=nvfp4",))
    assert line(last)[-1] == "--kv_cache_dtype=nvfp4" and "fp4" in line(last) and "ptpc_fp8" in shlex.join(line(last))
    assert any("set by --kv_cache_dtype" in note for note in refused(last))
    with pytest.raises(EvalkitError, match="single layers"):
        refused(made("atom", quant="kv=fp8 kv[draft]=bf16"))


def test_what_a_mode_sets_is_in_the_server_s_environment_and_what_a_user_says_wins(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr("evalkit.servers.launch.start", lambda words, **more: seen.update(more["env"]))
    for given, value in (((), "20000"), (("ATOM_PREFILL_DECODE_INTERVAL=7",), "7")):
        cell = made("atom", quant="m31flash-c1-4", env=given, program="atom", port=1)
        assert cell.server is not None
        launch(cell, cell.server, profile_of("atom"), tmp_path / "log")
        assert seen["ATOM_PREFILL_DECODE_INTERVAL"] == value


@pytest.mark.parametrize(
    ("architecture", "method"), [("DSparkDraftModel", "dspark"), ("LlamaForCausalLMEagle3", "eagle3")]
)
def test_a_draft_s_folder_says_its_method_whatever_it_is_called(tmp_path, monkeypatch, architecture, method):
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    for word in (str(folder), "draft"):
        for spec in (ServerSpec(engine="vllm", draft_model=word), ServerSpec(engine="vllm", base_url="http://h:1/v1")):
            cell = Cell.make(model="org/t", k=3, quant="bf16", draft=word, server=spec)
            assert cell.server is not None and (cell.draft, cell.server.method) == ("draft", method)
            assert cell.engine.draft_path == folder and refused(cell) is not None
            told = identity.weights(cell)
            assert told["draft_method"] == method and len(told["draft_sha"]) == 64
    assert method in line(Cell.make(model="o/t", k=3, quant="bf16", draft="draft", server=ServerSpec(engine="atom")))


def test_online_quant_config_is_atom_s_and_refused_elsewhere():
    own = '{"global_quant_config":"mxfp8"}'
    cell = Cell.make(model="org/t", k=7, quant="fp8", server=ServerSpec(engine="atom"), online_quant_config=own)
    assert json.loads(line(cell)[line(cell).index("--online_quant_config") + 1]) == json.loads(own)
    for engine in ("sglang", "vllm"):
        other = Cell.make(model="org/t", k=7, quant="bf16", server=ServerSpec(engine=engine), online_quant_config=own)
        with pytest.raises(EvalkitError, match=f"not of {engine}"):
            refused(other)


def test_the_delayer_s_interval_is_of_an_atom_that_is_started():
    assert Cell.make(model="o/t", k=7, quant="fp8", server=ServerSpec(engine="atom"), prefill_decode_interval=5)
    for spec in (ServerSpec(engine="sglang"), ServerSpec(engine="atom", base_url="http://h:1/v1")):
        with pytest.raises(EvalkitError, match="an ATOM that is started"):
            Cell.make(model="o/t", k=7, quant="fp8", server=spec, prefill_decode_interval=5)


def test_a_setting_whose_spelling_is_not_known_is_given_and_noted():
    notes = refused(made("atom", quant="nvfp4", args=("--kv_cache_dtype=nvfp4",)))
    assert any("set by --kv_cache_dtype from --server-arg" in n for n in notes)
    assert any("not known to evalkit" in n for n in notes), "flags of a newer tree are never presented as fact"


@pytest.mark.parametrize(("engine", "words"), [
    ("sglang", {"env": ("SGLANG_SIMULATE_ACC_LEN=4.04",)}),
    ("trtllm", {"env": ("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=3",)}),
    ("atom", {"args": ("--spec-decode-acceptance-length=4.04",), "quant": "fp8"}),
    ("vllm", {"args": ("--speculative-config", '{"synthetic_acceptance_length": 4}')}),
])  # fmt: skip
def test_c64_forced_acceptance_is_refused(engine, words):
    with pytest.raises(EvalkitError, match="forces acceptance"):
        refused(made(engine, **words))


def test_c64_forcing_in_our_own_environment_or_the_server_s_settings_is_refused():
    cell, profile = made("sglang"), profile_of("sglang")
    assert cell.server is not None
    with pytest.raises(EvalkitError, match="forces acceptance"):
        environment(cell.server, profile, {"SGLANG_SIMULATE_ACC_LEN": "4"})
    assert environment(cell.server, profile, {"HOME": "x"})["DO_NOT_TRACK"] == "1"
    told = {"args": {"spec_decode_acceptance_length": 4.04}}
    assert forced_by_server(profile_of("atom"), told) and not forced_by_server(profile_of("atom"), {"args": {}})


def test_secrets_are_not_in_a_stored_cell():
    spec = ServerSpec(engine="vllm", args=("--api-key", "sk-1", "--max-num-batched-tokens", "8"), env=("HF_TOKEN=abc",))
    assert spec.to_json()["args"] == ["--api-key", "***", "--max-num-batched-tokens", "8"]
    assert spec.to_json()["env"] == ["HF_TOKEN=***"]
    with pytest.raises(EvalkitError, match="user name, a password or a query"):
        ServerSpec(base_url="http://me:pw@host/v1")


def test_remote_code_only_where_a_flag_says_so():
    for engine in STARTED:
        assert "remote" not in shlex.join(line(made(engine, k=0)))
    assert "--trust-remote-code" in line(made("vllm", remote_code=True))


@pytest.mark.parametrize(("words", "said"), [
    (["--engine", "vllmm"], "did you mean vllm?"),
    (["--engine", "openai"], "no server to start"),
    (["--base-url", "nowhere"], "is no address"),
    (["--engine", "vllm", "--graph-sizes", "1,x"], "expected whole numbers"),
    (["--engine", "vllm", "--extra-body", "["], "is no JSON"),
    (["--engine", "vllm", "--server-env", "A"], "no NAME=VALUE"),
])  # fmt: skip
def test_bad_options_are_two_lines(words, said, capsys):
    assert main(["run", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("error: ") and err.count("\n") == 2


def test_a_large_k_is_for_engines_outside():
    with pytest.raises(EngineError):
        Cell.make(k=9)
    assert made("vllm", k=9).k == 9
