"""Known programs: the role of each in a run, and the program that a command line runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base import procfs, programs
from gpuwatch.base.programs import CodeSource, Role, SourceKind, find_source
from gpuwatch.declared.facts import Facts, RelatedProcess
from gpuwatch.inspector import servers
from gpuwatch.inspector.servers import Sockets
from tests.kill.test_run import taken
from tests.sampler.test_owners import related
from tests.support.process import Member, family

TASK_RUNNERS_AND_PAGES = {"celery", "voila"}
"""They serve requests, so what they fork is a server's, though each task or page is a run of its own."""

KEEPERS = sorted({*programs.INITS, *programs._SESSION_KEEPERS, "containerd-shim-runc-v2", "init(Ubuntu)"})
BOUNDARIES = sorted({*KEEPERS, *programs.TERMINALS, *programs.EDITORS})
PYTHON = "/opt/conda/bin/python"
KERNEL = "/run/user/1/jupyter/kernel-3f9a1c22-7777-4444-8888-abcdefabcdef.json"


# -- roles ---------------------------------------------------------------------------------------------------------


def is_a_servers(*above: str) -> bool:
    """Whether a process is taken for a part of a web server that stands above these."""
    ancestors = tuple(
        RelatedProcess(pid=pid, argv=tuple(line.split())) for pid, line in enumerate((*above, "gunicorn app"), 8)
    )
    facts = Facts(pid=7, argv=("python", "t.py"), ancestors=ancestors)
    return bool(servers.find_server(facts, Sockets(Path("/nonexistent"))))


def test_no_run_begins_with_what_starts_unrelated_programs_and_no_server_is_seen_through_it() -> None:
    for name in BOUNDARIES:
        assert programs.find_role((f"/usr/bin/{name}",)) is Role.BOUNDARY, name
        assert is_a_servers(f"/usr/bin/{name}") is (name in TASK_RUNNERS_AND_PAGES), name


def test_a_shell_ends_a_run_or_passes_it_on_and_no_server_is_seen_through_it() -> None:
    for name in programs.SHELLS:
        assert programs.find_role((f"/usr/bin/{name}",)) is Role.BOUNDARY, name
        assert programs.find_role((f"/usr/bin/{name}", "sweep.sh", "1")) is Role.WRAPPER, name
        assert not is_a_servers(f"/usr/bin/{name} sweep.sh"), name
        assert not is_a_servers(name), name


@pytest.mark.parametrize(
    ("line", "role"),
    [
        *((f"{name} -u ada python", Role.WRAPPER) for name in sorted(programs.USER_SWITCHES)),
        *((line, Role.WRAPPER) for line in ("timeout 9h python b.py", "bash -e sweep.sh", "sh -c x", "busybox sh x")),
        *((line, Role.WRAPPER) for line in ("python /opt/debugpy/launcher 4711 --", "perl -w /usr/bin/parallel x")),
        *((line, Role.BOUNDARY) for line in ("bash --rcfile x", "bash -o pipefail", "-bash", "python /bin/xonsh")),
        *((line, Role.BOUNDARY) for line in ("sshd: ada@pts/0", "jupyter lab", "python -m notebook", "ray start")),
        *((line, Role.BOUNDARY) for line in ("prefect worker start", "hq worker start", "dataspell", "mc", "spyder")),
        *((line, Role.MEMBER) for line in ("python train.py", "python make.py", "jupyter nbconvert", "ray job x", "")),
        *((line, Role.LAUNCHER) for line in ("torchrun t.py", "python -m torch.distributed.run", "/opt/mpirun -np 4")),
    ],
)
def test_roles(line: str, role: Role) -> None:
    assert programs.find_role(tuple(line.split())) is role


def test_a_server_is_seen_through_what_only_wraps_a_command() -> None:
    assert is_a_servers("python worker.py", "timeout 100 python worker.py")


@pytest.mark.parametrize("name", sorted({*programs.INITS, "init(Ubuntu)"}))
def test_what_an_init_has_for_a_child_was_left_to_it(name: str, tmp_path: Path) -> None:
    for pid, parent in ((7, 1), (1, 0)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_bytes(related("python" if pid == 7 else name, parent, pid, 1))
    assert procfs.is_adopted(7, procfs.read_stat(7, tmp_path), tmp_path)


def test_a_name_that_the_kernel_cut_is_still_known() -> None:
    for name in KEEPERS:
        assert programs.is_session_keeper(programs.name_from_comm(name[:15])), name
    assert programs.is_session_keeper(programs.name_from_comm("tmux: server"))
    assert programs.name_from_comm("-bash") in programs.SHELLS
    assert not programs.is_session_keeper(programs.name_from_comm("python"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tmux: server", "jupyter-lab", "containerd-shim-runc-v2"])
def test_what_keeps_sessions_is_not_ended_with_the_run_that_started_it(name: str, tmp_path: Path) -> None:
    other = Member("b", (PYTHON, "b.py"), leads=True)
    keeper = Member("keeper", (f"/usr/bin/{name}",), comm=name[:15], children=(other,))
    own = Member("a", (PYTHON, "a.py"))
    with family(Member("main", (PYTHON, "sweep.py"), children=(own, keeper))) as tree:
        assert taken(tree, tmp_path, "a") == {"main", "a"}


# -- Python sources ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("python train.py", SourceKind.FILE, "train.py"),
        ("/opt/conda/bin/python3.11 -u train.py --lr 0.1 other.py", SourceKind.FILE, "train.py"),
        ("python -u -O -B train.py", SourceKind.FILE, "train.py"),
        ("python -X dev -W ignore train.py", SourceKind.FILE, "train.py"),
        ("python -Xdev -Wignore train.py", SourceKind.FILE, "train.py"),
        ("python -uW ignore train.py", SourceKind.FILE, "train.py"),
        ("python --check-hash-based-pycs always train.py", SourceKind.FILE, "train.py"),
        ("python -m pkg.train --m other", SourceKind.MODULE, "pkg.train"),
        ("python -mpkg", SourceKind.MODULE, "pkg"),
        ("python -um pkg", SourceKind.MODULE, "pkg"),
        ("python -c 'import torch' -m no", SourceKind.CODE, "import torch"),
        ("python -uc 'import torch'", SourceKind.CODE, "import torch"),
        ("python '-cimport torch'", SourceKind.CODE, "import torch"),
        ("pypy3 train.py", SourceKind.FILE, "train.py"),
        ("python3.13t train.py", SourceKind.FILE, "train.py"),
        ("python /venv/bin/vllm serve m", SourceKind.FILE, "/venv/bin/vllm"),
        # wrappers: the user's script is behind their options
        ("python /venv/bin/torchrun --nproc_per_node 4 train.py --x", SourceKind.FILE, "train.py"),
        ("python /venv/bin/torchrun --nproc-per-node=4 -m pkg.train", SourceKind.MODULE, "pkg.train"),
        ("python -m torch.distributed.run --standalone train.py", SourceKind.FILE, "train.py"),
        ("python -m torch.distributed.launch --module pkg.train", SourceKind.MODULE, "pkg.train"),
        ("python /venv/bin/accelerate launch --config_file a.yaml train.py", SourceKind.FILE, "train.py"),
        (
            "python -u /venv/bin/deepspeed --num_gpus 2 src/train.py --deepspeed ds.json",
            SourceKind.FILE,
            "src/train.py",
        ),
        ("python -m cProfile -o out train.py", SourceKind.FILE, "train.py"),
        ("python /venv/bin/ipython train.py", SourceKind.FILE, "train.py"),
        # workers
        ("python -c 'from multiprocessing.spawn import spawn_main; spawn_main()' --x", SourceKind.WORKER, ""),
        ("python -s -c 'from multiprocessing.forkserver import main; main()'", SourceKind.WORKER, ""),
        ("python -m joblib.externals.loky.backend.popen_loky_posix --pipe 9", SourceKind.WORKER, ""),
    ],
)
def test_the_source_is_found_behind_the_options(line: str, kind: SourceKind, text: str) -> None:
    assert find_source(tuple(shlex.split(line))) == CodeSource(kind, text)


@pytest.mark.parametrize(
    "line",
    [
        *("", "python", "python -", "python -i", "python -X", "sleep 600", "./train.py", "VLLM::EngineCore"),
        *("pythonic train.py", "tensorflow_model_server --port=8500", "python -m ipykernel_launcher -f kernel.json"),
        "python -m ipykernel -f kernel.json",
        "python /venv/lib/python3.11/site-packages/ipykernel_launcher.py -f kernel.json",
        *("python /venv/bin/torchrun --help", "python /venv/bin/ipython"),
    ],
)
def test_other_programs_and_shells_have_no_source(line: str) -> None:
    assert find_source(tuple(shlex.split(line))) is None


@given(st.lists(st.text(max_size=12), max_size=8))
def test_no_command_line_makes_it_raise(words: list[str]) -> None:
    for argv in (tuple(words), ("python", *words), ("python", "-m", "pdb", *words)):
        found = find_source(argv)
        assert found is None or found.kind is SourceKind.WORKER or found.text in " ".join(argv)
        programs.find_role(argv, "".join(words))
        programs.find_model_server(argv)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/usr/bin/python3", True), ("python", True), ("/opt/python/bin/sh", False), ("", False), ("ipython", False)],
)
def test_what_is_an_interpreter(path: str, expected: bool) -> None:
    assert programs.is_python(path) is expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ((PYTHON, "-m", "ipykernel_launcher", "-f", KERNEL), True),
        ((PYTHON, "-m", "ipykernel", "--f=/x/kernel-v2-2107abc.json"), True),
        (("/usr/bin/R", "--slave", "-e", "IRkernel::main()", "--args", "/x/kernel-3f9a1c22-aa.json"), True),
        ((PYTHON, "/opt/jupyter-console", "--existing", "kernel-3f9a1c22-aa.json"), False),
        ((PYTHON, "train.py"), False),
        ((), False),
    ],
)
def test_kernels_by_their_command_line(argv: tuple[str, ...], *, expected: bool) -> None:
    assert programs.is_kernel(argv) is expected


# -- servers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/opt/venv/bin/python3 /opt/venv/bin/vllm serve meta-llama/Llama-3.1-8B --port 8000", "vLLM"),
        ("vllm serve", "vLLM"),
        ("python3 -m vllm.entrypoints.openai.api_server --model x", "vLLM"),
        ("VLLM::APIServer_0", "vLLM"),
        ("python3 -m sglang.launch_server --model-path x", "SGLang"),
        ("tritonserver --model-repository=/models", "Triton"),
        ("/opt/tritonserver/backends/python/triton_python_backend_stub /models/a/1/model.py", "Triton"),
        ("/usr/local/bin/ollama serve", "Ollama"),
        ("/usr/local/bin/ollama runner --ollama-engine --model /models/blobs/sha256-1 --port 41813", "Ollama"),
        ("/usr/local/lib/ollama/runners/cuda_v12_avx/ollama_llama_server runner --model x", "Ollama"),
        ("text-generation-launcher --model-id x", "TGI"),
        ("/opt/conda/bin/python3.10 /opt/conda/bin/text-generation-server serve x --rank 0", "TGI"),
        ("./llama-server -m model.gguf", "llama.cpp"),
        ("python koboldcpp.py --model x", "KoboldCpp"),
        ("lmdeploy serve api_server x", "LMDeploy"),
        ("java -cp x org.pytorch.serve.ModelServer", "TorchServe"),
        ("python /venv/ts/model_service_worker.py --sock-type unix", "TorchServe"),
        ("python -m fastchat.serve.model_worker --model-path x", "FastChat"),
        ("bentoml serve service:svc", "BentoML"),
        ("python /home/ada/ComfyUI/main.py --listen", "ComfyUI"),
        ("python -u /srv/stable-diffusion-webui/launch.py", "Stable Diffusion web UI"),
        ("ray::ServeReplica:default:Embed", "Ray Serve"),
        ("ray::RayWorkerWrapper.execute_method", "model server on Ray"),
        ("python3 /venv/bin/uvicorn app:app", "uvicorn"),
        ("gunicorn: worker [app]", "gunicorn"),
        ("python3 /venv/bin/celery -A project worker", "celery"),
        ("[celeryd: celery@host:MainProcess] -active- (worker)", "celery"),
        ("python /venv/bin/rq worker gpu", "rq"),
        ("streamlit run demo.py", "streamlit"),
        ("fastapi run main.py", "fastapi"),
        ("python -m http.server 8000", "http.server"),
        *(
            (line, "")
            for line in (
                *("python train.py", "python -m train", "", "-bash", "python", "python -c pass", "vllm bench latency"),
                *("vllm", "ollama run llama3", "ollama pull x", "lmdeploy convert", "bentoml build", "flask shell"),
                *("python serve.py", "VLLM::EngineCore", "VLLM::Worker_TP0", "ray::IDLE", "ray::Trainer.fit"),
                *("python -m torch.distributed.run --nproc_per_node 8 train.py", "tensorboard --logdir runs"),
                *("python -m ipykernel_launcher -f kernel-1.json", "python train.py vllm serve"),
            )
        ),
    ],
)
def test_servers_by_their_command_line(line: str, expected: str) -> None:
    argv = tuple(line.split(" "))
    assert (programs.find_model_server(argv) or programs.find_web_server(argv)) == expected
