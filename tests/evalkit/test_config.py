"""Cell: names, defaults and refusals."""

from pathlib import Path

import pytest

from engine.errors import EngineError
from evalkit.config import DRAFTS, TARGETS, Cell, resolve_task, task_names
from evalkit.errors import EvalkitError


def test_defaults_are_k7_with_the_dspark_draft():
    cell = Cell.make()
    assert (cell.k, cell.quant, cell.draft, cell.target) == (7, "float32", "dspark", "gradeschool-m3")
    assert cell.engine.model == TARGETS["gradeschool-m3"]
    assert cell.engine.draft_path == DRAFTS["dspark"].path


@pytest.mark.parametrize("draft", ["dspark", "ngram", "none"])
def test_k0_has_no_draft(draft):
    cell = Cell.make(draft=draft, k=0)
    assert (cell.draft, cell.engine.draft, cell.engine.draft_path) == ("none", "none", None)


def test_no_draft_means_k0():
    assert Cell.make(draft="none").k == 0


def test_a_k_without_a_draft_is_refused():
    with pytest.raises(EngineError, match="no draft is named"):
        Cell.make(draft="none", k=3)


def test_folders_are_taken_as_target_and_draft(tmp_path):
    (tmp_path / "big model").mkdir()
    (tmp_path / "its-draft").mkdir()
    cell = Cell.make(model=str(tmp_path / "big model"), draft=str(tmp_path / "its-draft"), k=3, quant="fp8")
    assert (cell.target, cell.draft, cell.engine.draft) == ("big model", "its-draft", "dspark")
    assert cell.stem("gradeschool") == "gradeschool-big-model-its-draft-k3-fp8"


def test_a_draft_s_folder_says_its_method(tmp_path):
    config = tmp_path / "config.json"
    for content, method in (
        ('{"architectures": ["LlamaForCausalLMEagle3"]}', "eagle3"),
        ('{"architectures": ["Qwen3DSparkModel"]}', "dspark"),
        ('{"architectures": []}', "dspark"),
        ('{"architectures": 3}', "dspark"),
        ("broken", "dspark"),
        ("[" * 100_000, "dspark"),
    ):
        config.write_text(content)
        assert Cell.make(draft=str(tmp_path)).engine.draft == method
    cell = Cell.make(draft="eagle3", k=5, quant="fp8")
    assert (cell.draft, cell.engine.draft, cell.engine.draft_path) == ("eagle3", "eagle3", DRAFTS["eagle3"].path)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ({"quant": "nvpf4"}, "did you mean nvfp4"),
        ({"k": 9}, "0 .no speculation. to 7"),
        ({"draft": "dspakr"}, "did you mean dspark"),
        ({"model": "gradeschool-m2"}, "did you mean gradeschool-m3"),
        ({"draft_width": "wide"}, "use k or block"),
        ({"draft": "ngram", "draft_width": "block"}, "draft_width is block, and ngram drafts no blocks"),
        ({"limit": -1}, "limit is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"batch": 0}, "max_batch is 0"),
        ({"top_k": 2**63, "temperature": 1.0}, "top_k is 9223372036854775808; fix: .* at most 2147483647"),
        ({"verify": "block", "forced_length": 5.0}, "--verify block .*; fix: leave out --verify with --forced-length"),
        ({"verify": "block", "k": 0}, "^--verify block at K=0: there is no draft to verify; fix: leave it away, or"),
        ({"draft": "none", "verify": "block"}, "^--verify block at K=0"),
        ({"confidence_threshold": 0.9, "verify_rows": 64, "k": 0}, "^--confidence-threshold 0.9 and --verify-rows 64 "),
        ({"top_p": 0.5}, "^top_p is 0.5 at temperature 0: a greedy .*; fix: leave it away, or give a temperature"),
        ({"top_p": 0.5, "top_k": 3}, "^top_p is 0.5 and top_k is 3 at temperature 0"),
        ({"verify_rows": -1}, "verify_rows is -1; fix: give 0 .no limit., or at least 64"),
        ({"verify": "blok"}, "unknown verify rule 'blok'; fix: did you mean block. use standard or block$"),
        ({"verify": "forced"}, "--verify forced without a length to draw; fix: give --forced-length alone"),
    ],
)
def test_what_is_wrong_is_said(words, names):
    with pytest.raises((EngineError, EvalkitError), match=names):
        Cell.make(**words)


def test_tasks_are_found_by_their_own_name():
    assert {"gradeschool", "gsm8k", "gsm8k_inferencex"} <= set(task_names())
    assert resolve_task("gsm8k_inferencex").name == "inferencex.yaml"
    path = resolve_task("gradeschool")
    assert resolve_task(str(path)) == path
    assert resolve_task(str(path.parent)) == path


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(EvalkitError, match="did you mean gsm8k"):
        resolve_task("gsm8")
    with pytest.raises(EvalkitError, match="does not exist"):
        resolve_task("nowhere.yaml")


def test_json_of_a_cell_is_flat_and_plain(tmp_path):
    values = Cell.make(data=tmp_path / "x.jsonl", k=5).to_json()
    assert values["k"] == 5 and values["draft_method"] == "dspark" and values["data"] == str(tmp_path / "x.jsonl")
    assert all(isinstance(v, str | int | float | bool | None) for v in values.values())
    assert not any(isinstance(v, Path) for v in values.values())


def test_threads_below_zero_are_refused() -> None:
    with pytest.raises(EngineError, match="threads is -1"):
        Cell.make(threads=-1)


def test_ranks_are_in_a_run_s_name_and_record() -> None:
    cell = Cell.make(k=7, quant="nvfp4", tp=4)
    assert cell.engine.tp == cell.to_json()["tp"] == 4
    assert cell.stem("gsm8k") == "gsm8k-gradeschool-m3-dspark-k7-nvfp4-tp4"
    with pytest.raises(EngineError, match="tp is 0"):
        Cell.make(tp=0)


def test_a_cell_says_the_format_of_each_family():
    cell = Cell.make(quant="kv=nvfp4 w=ptpc_fp8 index=fp4")
    told = cell.to_json()
    assert told["quant"] == cell.quant == "w=ptpc_fp8 kv=nvfp4"
    assert [told[f"quant_{f}"] for f in ("w", "act", "kv", "index")] == ["ptpc_fp8", "fp8", "nvfp4", "fp4"]
    assert cell.stem("gsm8k") == "gsm8k-gradeschool-m3-dspark-k7-w-ptpc_fp8-kv-nvfp4"
    assert Cell.make(quant="m31flash-c1-4").stem("gsm8k").endswith("-k7-m31flash-c1-4")
    assert Cell.make(quant="fp8").to_json()["quant_w"] == "auto"


def test_online_quant_config_is_json_or_a_file(tmp_path):
    text = '{"global_quant_config": "ptpc_fp8"}'
    (tmp_path / "quant.json").write_text(text + "\n")
    for word in (text, str(tmp_path / "quant.json")):
        assert Cell.make(online_quant_config=word).engine.online_quant_config == text
    with pytest.raises(EvalkitError, match="neither JSON nor a readable file"):
        Cell.make(online_quant_config=str(tmp_path / "none.json"))
