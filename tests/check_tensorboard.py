"""check_tensorboard.py IMAGENET: --tensorboard's event file has the numbers of --metrics, also of a run that goes on; records and
checksums are TFRecord's."""
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

IMAGENET = sys.argv[1]
RUN = ["--synthetic", "40", "--num-classes", "5", "-a", "resnet18", "--width", "8", "--image-size", "16", "--stem", "small", "-b", "16",
       "-j", "1", "--epochs", "2"]


def masked_crc(data):
    """CRC-32C by the polynomial 0x1EDC6F41, as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(data):
    at = 0
    while at < len(data):
        length, = struct.unpack_from("<Q", data, at)
        of_length, = struct.unpack_from("<I", data, at + 8)
        record = data[at + 12:at + 12 + length]
        of_record, = struct.unpack_from("<I", data, at + 12 + length)
        assert of_length == masked_crc(data[at:at + 8]) and of_record == masked_crc(record), at
        yield record
        at += 16 + length


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def read_message(data):
    """The fields of a protocol buffer: {number: value}."""
    fields, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            fields[key >> 3], at = read_varint(data, at)
        elif key & 7 == 2:
            size, at = read_varint(data, at)
            fields[key >> 3] = data[at:at + size]
            at += size
        else:
            size, form = (8, "<d") if key & 7 == 1 else (4, "<f")
            fields[key >> 3], = struct.unpack_from(form, data, at)
            at += size
    return fields


def read_points(path):
    with open(path, "rb") as file:
        events = [read_message(record) for record in read_records(file.read())]
    assert events[0][3] == b"brain.Event:2", events[0]
    points, begins = {}, 1
    for event in events[1:]:
        if 7 in event: # a session log: its status is START
            assert read_message(event[7]) == {1: 1} and event is events[1], events
            begins = event[2]
            continue
        value = read_message(read_message(event[5])[1])
        points[value[1].decode(), event.get(2, 0)] = value[2]
        assert event[1] > 1.6e9, event
    return points, begins


def compare(points, lines):
    """The number of points, which are those of the lines; a measure that a step has not is null, and no point."""
    count = 0
    with open(lines, encoding="utf-8") as metrics:
        for line in map(json.loads, metrics):
            phase = "validation" if line.get("validation") else "train"
            for name in ("loss", "top1", "top5", "lr", "grad_scale", "left_out", "images_per_second"):
                if line.get(name) is None:
                    continue
                found = points.pop((f"{phase}/{name}", line["step"]))
                assert found == struct.unpack("<f", struct.pack("<f", line[name]))[0], (name, found, line[name])
                count += 1
    assert not points, points
    return count


def check_resumed(folder):
    """A run that goes on after step 2, whose predecessor went as far as step 4; and one that only validates."""
    out, lines = os.path.join(folder, "new/out"), os.path.join(folder, "lines")
    run = [IMAGENET, *RUN, "--margin", "arcface:0.2", "--val-interval", "0"]
    subprocess.run([*run, "--steps", "2", "--output", out], check=True, stdout=subprocess.DEVNULL)
    resumed = [*run, "--resume", os.path.join(out, "checkpoint.safetensors"), "--tensorboard", os.path.join(folder, "resumed"), "--metrics", lines]
    subprocess.run([*resumed, "--steps", "4"], check=True, stdout=subprocess.DEVNULL)
    file, = glob.glob(os.path.join(folder, "resumed/events.out.tfevents.*"))
    points, begins = read_points(file)
    assert compare(points, lines) == 2 * 5 and begins == 3, begins
    subprocess.run([*resumed, "-e"], check=True, stdout=subprocess.DEVNULL)
    validated, = set(glob.glob(os.path.join(folder, "resumed/events.out.tfevents.*"))) - {file}
    points, begins = read_points(validated)
    with open(lines, encoding="utf-8") as metrics:
        steps = [json.loads(line)["step"] for line in metrics]
    assert begins == 1 and points and steps == [3, 4, 2], (points, steps)


def main():
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF  # CRC-32C's check value
    with tempfile.TemporaryDirectory() as folder:
        board, lines = os.path.join(folder, "board"), os.path.join(folder, "metrics.jsonl")
        subprocess.run([IMAGENET, *RUN, "--tensorboard", board, "--metrics", lines], check=True, stdout=subprocess.DEVNULL)
        file, = glob.glob(os.path.join(board, "events.out.tfevents.*"))
        points, begins = read_points(file)
        assert compare(points, lines) == 6 * 7 + 2 * 4 and begins == 1, begins
        check_resumed(folder)
        done = subprocess.run([IMAGENET, *RUN, "--tensorboard", file], check=False, capture_output=True, text=True)
        assert done.returncode != 0 and "--tensorboard" in done.stderr and "Not a directory" in done.stderr, done


main()
