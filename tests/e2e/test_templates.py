"""Templates: what is there, and what is wrong with one that does not validate."""
import json
import shutil

import pytest

from bridge import ROOTFS

GOOD = {"name": "mine", "description": "of my own", "kernels": {"uml": "/usr/bin/linux.uml"},
        "initrds": {"uml": "image.cpio"}, "uml_preload": str(ROOTFS / "uml-preload.so"),
        "resources": {"vcpus": 1, "memory_mib": 128}}


@pytest.fixture
def own(farm, tmp_path):
    """A bridge with templates of the test's own; write(name, document) adds one."""
    tmp_path.chmod(0o755)
    bridge = farm.new("uml", "--rootfs-dir", str(tmp_path))

    def write(name, document):
        directory = tmp_path / "templates" / name
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOTFS / "base-uml.cpio", directory / "image.cpio")
        text = document if isinstance(document, str) else json.dumps(document)
        (directory / "template.json").write_text(text)

    write("mine", GOOD)
    bridge.write = write
    bridge.start()
    yield bridge
    bridge.stop()


def test_templates_are_listed_with_what_they_boot_on(own):
    own.write("broken", "{")
    items = own.client.get("/v1/templates").json["items"]
    assert [t["name"] for t in items] == ["broken", "mine"]
    assert items[0]["error"].startswith("broken/template.json: no JSON object")
    assert (items[1]["vmms"], items[1]["error"]) == (["uml"], None)
    assert items[1]["description"] == "of my own"
    assert items[1]["resources"]["memory_mib"] == 128


def test_a_template_of_ones_own_boots(own):
    box = own.client.create(template="mine")
    assert box.info["resources"]["memory_mib"] == 128
    assert box.out("echo ok") == "ok\n"
    box.delete()


@pytest.mark.parametrize("change,words", [
    ({"resources": {"memory_mib": "128"}}, "resources.memory_mib must be a whole number from 64"),
    ({"resources": {"memory_mib": 1}}, "resources.memory_mib must be a whole number from 64"),
    ({"resources": {"vcpus": 1.5}}, "resources.vcpus must be a whole number from 1"),
    ({"resources": {"disk": 1}}, "resources.disk is not known"),
    ({"resources": {"disk_mib": 15}}, "resources.disk_mib must be a whole number from 16"),
    ({"resources": {"disk_mib": 64}}, "resources.disk_mib cannot be had from uml"),
    ({"root": 5}, "root must be a string"),
    ({"root": "none.ext4"}, "root names none.ext4, which is missing"),
    ({"root": "image.cpio"}, "root cannot be had from uml"),
    ({"resources": 3}, "resources must be an object"),
    ({"kernels": ["x"]}, "kernels must be an object"),
    ({"initrds": {"uml": 5}}, "initrds.uml must be a file's name"),
    ({"kernel": "x"}, "kernel is not known"),
    ({"name": "other"}, "name must be that of its directory"),
    ({"description": 1}, "description must be a string"),
])
def test_what_does_not_validate_names_file_and_field(own, change, words):
    own.write("mine", {**GOOD, **change})
    reply = own.client.post("/v1/sandboxes", {"template": "mine"})
    assert (reply.status, reply.code) == (502, "launcher.failed")
    assert reply.error["message"].startswith(f"mine/template.json: {words}")
    [item] = own.client.get("/v1/templates").json["items"]
    assert item["error"].startswith(f"mine/template.json: {words}")


@pytest.mark.parametrize("name", ["none", "../mine", ".mine", ""])
def test_a_template_that_is_not_there_is_not_found(own, name):
    reply = own.client.post("/v1/sandboxes", {"template": name})
    assert (reply.status, reply.code) == (404, "template.not_found")


@pytest.mark.parametrize("change,words", [
    ({"initrds": {"uml": "none.cpio"}}, "initrds.uml names none.cpio, which is missing"),
    ({"uml_preload": "/none.so"}, "uml_preload names /none.so, which is missing"),
    ({"initrds": {}}, "initrds.uml is missing: the template is not for this VMM"),
])
def test_a_missing_file_is_named_with_its_field(own, change, words):
    own.write("mine", {**GOOD, **change})
    reply = own.client.post("/v1/sandboxes", {"template": "mine"})
    assert (reply.status, reply.error["message"]) == (502, f"mine/template.json: {words}")
    [item] = own.client.get("/v1/templates").json["items"]
    assert (item["vmms"], item["error"]) == ([], f"mine/template.json: {words}")


def test_a_template_for_no_vmm_says_so(own):
    own.write("mine", {**GOOD, "kernels": {"other": "x"}})
    [item] = own.client.get("/v1/templates").json["items"]
    assert item["error"] == "mine/template.json: kernels names no VMM that is known"


def test_the_size_of_a_root_is_told(own, tmp_path):
    (tmp_path / "root.ext4").write_bytes(b"x" * 12345)
    own.write("rooted", {"name": "rooted", "kernels": {"qemu": "image.cpio"},
                         "initrds": {"qemu": "image.cpio"}, "root": "../../root.ext4"})
    items = own.client.get("/v1/templates").json["items"]
    assert [(t["name"], t["vmms"], t["root_bytes"]) for t in items] == \
        [("mine", ["uml"], None), ("rooted", ["qemu"], 12345)]
