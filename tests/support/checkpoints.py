"""For test scripts that change checkpoints."""
import json
import struct


def change_checkpoint(path, metadata, zeros=(), added=()):
    """Sets fields of the metadata, None removes one, and the tensors `zeros` to 0, and adds tensors of one float32; the file then has
    no checksums."""
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<Q", data)
    header, values = json.loads(data[8:8 + size]), data[8 + size:]
    for key in ("crc64.header", "crc64.tensors"):
        del header["__metadata__"][key]
    header["__metadata__"] = {key: value for key, value in (header["__metadata__"] | metadata).items() if value is not None}
    for name in zeros:
        start, end = header[name]["data_offsets"]
        values[start:end] = bytes(end - start)
    for name in added:
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(values), len(values) + 4]}
        values += bytes(4)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)
