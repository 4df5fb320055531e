"""Examples at the foot of each `--help`, by command."""

from __future__ import annotations

EXAMPLES = {
    "irc": (
        "irc compile net.onnx out.onnx",
        "irc compile net.onnx out.onnx --explain",
        "irc compile --help",
    ),
    "irc compile": (
        "irc compile net.onnx out.onnx",
        "irc compile net.onnx -o out.onnx --fold-map map.json --verify",
        (
            "irc compile net.onnx out.onnx --passes"
            " SimplifyInference,FoldScaleAxis{forward=false},FoldConstant"
        ),
        "irc compile net.onnx out.onnx --keep logits",
        "irc compile net.onnx out.onnx --input-shape image=1,1,8,8",
        "irc compile net.onnx out.irc",
        "irc compile a.onnx b.onnx -o folder --jobs 2",
    ),
    "irc inspect": ("irc inspect net.onnx", "irc inspect net.onnx --json -"),
    "irc check": (
        "irc check net.onnx",
        "irc check net.onnx --format sarif -o irc.sarif",
        "irc check a.onnx b.onnx --allow graph_output --format github",
    ),
    "irc report": ("irc report net.onnx -o page.html",),
    "irc dump": (
        "irc dump net.onnx",
        "irc dump net.onnx -o net.irc --data net.npz",
        "irc dump net.onnx --passes default --diff",
    ),
    "irc diff": ("irc diff net.onnx same.onnx",),
    "irc verify": ("irc verify net.onnx out.onnx",),
    "irc align": (
        "irc align net.onnx out.onnx",
        "irc align net.onnx out.onnx --map map.json --html align.html",
    ),
    "irc bisect": ("irc bisect net.onnx",),
    "irc quantize": (
        "irc quantize net.onnx -o int8.onnx --input-range image=0:1",
        "irc quantize net.onnx -o int8.onnx --data calibration.npz",
    ),
    "irc foldmap": ("irc foldmap show map.json", "irc foldmap check out.onnx map.json"),
    "irc foldmap show": ("irc foldmap show map.json",),
    "irc foldmap check": ("irc foldmap check out.onnx map.json",),
    "irc foldmap export": (
        "irc foldmap export out.onnx map.json --to nncf -o nncf.json --input-range image=0:1",
        "irc foldmap export out.onnx map.json --to ranges -o - --input-range image=0:1",
    ),
    "irc foldmap recover": ("irc foldmap recover out.onnx --from net.onnx -o recovered.json",),
    "irc unfold": ("irc unfold out.onnx map.json -o back.onnx",),
    "irc certify": (
        "irc compile net.onnx out.onnx --certificate cert.json",
        "irc certify net.onnx out.onnx cert.json",
    ),
    "irc completion": ("irc completion bash",),
    "irc passes": ("irc passes", "irc passes --json"),
}


def example_lines(prog: str) -> str:
    """Return the foot of the help of the command `prog`: its examples, one a line."""
    found = EXAMPLES.get(prog, ())
    return "".join(("\nexamples:\n" if found else "", *(f"  {line}\n" for line in found)))
