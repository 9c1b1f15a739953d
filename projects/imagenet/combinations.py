#!/usr/bin/env python3
"""Measures how the ways of parallel training combine, on 4 ranks: data parallel and
split last layers x precision x ZeRO. Writes the table into README.md next to this file, and
the memory over the number of classes as bar charts, memory.svg.

    tools/build release && projects/imagenet/combinations.py          # all, some 30 minutes
    projects/imagenet/combinations.py --only table --build build/gcc  # one of the two
    projects/imagenet/combinations.py --only chart --keep cells.json  # goes on where it was interrupted
    projects/imagenet/combinations.py --check 3 --build build/gcc     # small runs on 3 ranks, writes nothing

It fails, and writes no table, where losses are not the single process's within BOUNDS, a
stage's not to the bit those without ZeRO, or a stage has hardly less memory than the one before.
"""
import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RANKS = 4
STEPS = 20
BATCH = 16

LAYOUTS = {
    'DDP': '',
    'row': '--enable-model-parallel --model-parallel-dim row',
    'column': '--enable-model-parallel --model-parallel-dim column',
    '2 × 2': '--enable-model-parallel --model-parallel-dim column --model-parallel-size 2',
}
PRECISIONS = {'float32': '', 'AMP': '--enable-amp-mode bf16'}
STAGES = {'none': '', '1': '--enable-zero-optim 1', '2': '--enable-zero-optim 2', '3': '--enable-zero-optim 3'}

# At each step a cell's loss may differ from that of one process in the same precision by this
# part of what that one's training takes off its loss, which must be LEAST or more.
BOUNDS = {'float32': 1e-3, 'AMP': 2e-2}
LEAST = 1
# In each cell ranks have the same backbone to partition: a stage has less memory than the one before by this part at least.
FALLS = 0.05

# All steps have the same images, so that what training does to the loss is seen at once.
RUN = '-a resnet18 --stem small --image-size 16 --val-interval 0 -j 1 --seed 7 --sync-bn --bucket-mib 4 --head plain'
TABLE = RUN + f' --synthetic {BATCH} --num-classes 10000 -b {BATCH} --lr 1e-4 --steps {STEPS}'
# A narrow model: the memory and the all-reduces of a wide one's replicas take most of the time.
SMALL = TABLE + ' --image-size 8 --num-classes 101 --width 16 --bucket-mib 0.5 --lr 3e-4 --steps 10'
CHART = RUN + f' --synthetic 32 -b {BATCH} --lr 1e-5 --steps 2 --num-classes {{}}'

CLASSES = [1000, 10000, 100000, 1000000]
HEAD = 512 + 1 # numbers of a class
COLOURS = {'none': '#3b4252', '1': '#2f6db5', '2': '#5b8e3e', '3': '#d08a2e'}


def run(build, ranks, options):
    """The metrics' line of each step."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, 'metrics.json')
        launcher = [os.path.join(build, 'tools/shardrun'), '-n', str(ranks)] if ranks > 1 else []
        command = launcher + [os.path.join(build, 'projects/imagenet/imagenet')] + options.split() + ['--metrics', metrics]
        done = subprocess.run(command, env={**os.environ, 'OMP_NUM_THREADS': '1'}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f'{" ".join(command)} ended with {done.returncode}: {done.stdout[-2000:].strip()}')
        with open(metrics) as file:
            return [json.loads(line) for line in file]


def cell(layout, precision, stage):
    return f'{LAYOUTS[layout]} {PRECISIONS[precision]} {STAGES[stage]}'


def measure_table(build, options, ranks):
    """A row for each cell, and the most that any differs, of each precision."""
    rows, worst, wrong = [], dict.fromkeys(PRECISIONS, 0.0), []
    for precision in PRECISIONS:
        single = run(build, 1, f'{options} {PRECISIONS[precision]}')
        moved = single[0]['loss'] - single[-1]['loss']
        if not moved >= LEAST:
            sys.exit(f'one process, {precision}: training takes {moved} off the loss, less than {LEAST}: nothing can be compared')
        rows.append(('1 rank', precision, '', single[-1]['loss'], None, single[-1]['memory_mib']['peak']))
        for layout, stage in itertools.product(LAYOUTS, STAGES):
            if layout == '2 × 2' and ranks % 2:
                continue
            lines = run(build, ranks, f'{options} {cell(layout, precision, stage)}')
            losses = [line['loss'] for line in lines]
            mib = lines[-1]['memory_mib']['peak']
            if stage == 'none':
                whole = losses
            elif not mib < (1 - FALLS) * before:
                wrong.append(f'{layout}, {precision}: {mib:.1f} MiB with ZeRO {stage}, {before:.1f} with the stage before')
            before = mib
            differences = [abs(loss - alone['loss']) / moved for loss, alone in zip(losses, single, strict=True)]
            difference = math.nan if any(map(math.isnan, differences)) else max(differences)
            rows.append((layout, precision, stage, losses[-1], difference, mib))
            worst[precision] = max(worst[precision], difference)
            if not difference <= BOUNDS[precision]:
                wrong.append(f'{layout}, {precision}, ZeRO {stage}: the loss is off by {difference:.1e}, more than {BOUNDS[precision]:.0e}')
            if losses != whole:
                wrong.append(f'{layout}, {precision}: with ZeRO {stage} the loss ends with {losses[-1]}, without {whole[-1]}')
            print(f'{layout:8}{precision:9}ZeRO {stage:6}loss {rows[-1][3]:.6f}  {difference:.1e}{rows[-1][5]:10.1f} MiB', flush=True)
    if wrong:
        sys.exit('; '.join(wrong))
    return rows, worst


def write_table(rows, worst):
    text = [f'On {RANKS} ranks, the library\'s memory at its peak of the rank that has most. The difference is to one process of the same',
            'precision: the most of any step, as a part of what training takes off the loss (untrained less trained);',
            ', '.join(f'{worst[p]:.0e} in {p} (allowed: {BOUNDS[p]:.0e})' for p in PRECISIONS) + ' at most. '
            'With and without ZeRO all losses', 'are equal to the bit.',
            f'Made by `combinations.py` with `{TABLE}`.', '',
            f'| layer | precision | ZeRO | loss after {STEPS} steps | difference | MiB a rank |', '|---|---|---|---:|---:|---:|']
    for layout, precision, stage, loss, difference, mib in rows:
        shown = f'{difference:.1e}' if stage else ''
        text.append(f'| {layout} | {precision} | {stage} | {loss:.6f} | {shown} | {mib:.1f} |')
    path = os.path.join(HERE, 'README.md')
    with open(path) as file:
        readme = file.read()
    begin, end = '<!-- made by combinations.py -->\n', '<!-- end -->\n'
    at, to = readme.index(begin) + len(begin), readme.index(end)
    with open(path, 'w') as file:
        file.write(readme[:at] + '\n'.join(text) + '\n' + readme[to:])


def available_mib():
    with open('/proc/meminfo') as file:
        return 0.9 * next(int(line.split()[1]) for line in file if line.startswith('MemAvailable')) / 1024


def needed_mib(layout, precision, stage, classes):
    """Of all ranks together: their parts of the head, by the README, and what else there is."""
    parts = {'DDP': 1, '2 × 2': 2}.get(layout, RANKS)
    copies = RANKS // parts
    per_number = {'none': 12, '1': 8 + 4 / copies, '2': 4 + 8 / copies, '3': 12 / copies}[stage]
    per_number += 2 if precision == 'AMP' and stage != '3' else 0
    logits = 12 * BATCH * classes
    return RANKS * (250 + (per_number * HEAD * classes / parts + logits) / 2**20)


def measure_chart(build, classes, keep):
    """The peak of each cell, by its name, in MiB; None where the machine has not the memory. A data
    parallel rank has what one process has with the rank's images, which stands in where four do not fit."""
    cells = {}
    if keep and os.path.exists(keep):
        with open(keep) as file:
            cells = json.load(file)
    for count, precision, layout, stage in itertools.product(classes, PRECISIONS, LAYOUTS, STAGES):
        name = f'{count} {precision} {layout} {stage}'
        if name in cells:
            continue
        ranks, options = RANKS, f'{CHART.format(count)} {cell(layout, precision, stage)}'
        needed = needed_mib(layout, precision, stage, count)
        if needed > available_mib() and layout == 'DDP' and stage == 'none':
            ranks, needed, options = 1, needed / RANKS, options + f' -b {BATCH // RANKS}'
        fits = needed < available_mib()
        mib = run(build, ranks, options)[-1]['memory_mib']['peak'] if fits else None
        cells[name] = {'mib': mib, 'ranks': ranks}
        print(f'{name:36}' + (f'{mib:10.1f} MiB, {ranks} rank(s)' if fits else 'does not fit'), flush=True)
        if keep:
            with open(f'{keep}.new', 'w') as file:
                json.dump(cells, file, indent=1)
            os.replace(f'{keep}.new', keep)
    return cells


# Of the chart: a panel's place and inside, in points; bars of a group, and from group to group.
LEFT, TOP, WIDE, HIGH, ACROSS, DOWN = 52, 110, 400, 150, 440, 216
BAR, GROUP = 22, 98
LOW, TOP_MIB = 10, 30000


def height(mib):
    return HIGH * math.log(max(mib, LOW) / LOW) / math.log(TOP_MIB / LOW)


def draw_bar(x, base, cell_of, stage, title):
    """The number stands on the bar, which is hatched where one process stood in for the ranks."""
    mib, alone, middle = cell_of['mib'], cell_of['ranks'] == 1, x + BAR / 2
    if mib is None:
        return [f'<text x="{middle}" y="{base - 4}" text-anchor="middle">–<title>{title}: does not fit</title></text>']
    high = height(mib)
    shape = f'x="{x}" y="{base - high:.1f}" width="{BAR - 2}" height="{high:.1f}"'
    out = [f'<rect {shape} fill="{COLOURS[stage]}"><title>{title}: {mib:.0f} MiB</title></rect>']
    if alone:
        out.append(f'<rect {shape} fill="url(#alone)"/>')
    out.append(f'<text transform="translate({middle + 2} {base - high - 4:.1f}) rotate(-60)" font-size="10">{mib:,.0f}{"*" if alone else ""}</text>')
    return out


def draw_panel(cells, classes, layout, precision, left, top):
    base = top + HIGH
    out = [f'<text x="{left}" y="{top - 14}" font-size="13" font-weight="bold">{layout}, {precision}</text>']
    mark = LOW
    while mark <= TOP_MIB:
        y = base - height(mark)
        out.append(f'<line x1="{left}" x2="{left + WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end" font-size="10">{mark:,}</text>')
        mark *= 10
    for g, count in enumerate(classes):
        start = left + 6 + g * GROUP
        for i, stage in enumerate(STAGES):
            title = f'{layout}, {precision}, ZeRO {stage}, {count:,} classes'
            out += draw_bar(start + i * BAR, base, cells[f'{count} {precision} {layout} {stage}'], stage, title)
        out.append(f'<text x="{start + 2 * BAR}" y="{base + 16}" text-anchor="middle">{count:,}</text>')
    return out


def write_chart(cells, classes, path):
    """A panel for each layout and precision, all in one scale."""
    width, high = LEFT + len(PRECISIONS) * ACROSS, TOP + len(LAYOUTS) * DOWN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high}" width="{width}" height="{high}" '
           'font-family="sans-serif" font-size="11">',
           '<defs><pattern id="alone" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
           '<rect width="2" height="5" fill="white"/></pattern></defs>',
           f'<rect width="{width}" height="{high}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="15">Memory of a rank at its peak in MiB, by the number of classes: ResNet-18, {BATCH} images on {RANKS} ranks</text>']
    for i, stage in enumerate(STAGES):
        out.append(f'<rect x="{LEFT + i * 80}" y="30" width="10" height="10" fill="{COLOURS[stage]}"/>'
                   f'<text x="{LEFT + i * 80 + 14}" y="39">{"no ZeRO" if stage == "none" else "ZeRO " + stage}</text>')
    notes = {'* and hatched: one process with the images of a rank, where four did not fit': any(c['ranks'] == 1 for c in cells.values()),
             '– does not fit into the measuring machine': any(c['mib'] is None for c in cells.values())}
    out.append(f'<text x="{LEFT}" y="60">{"; ".join(note for note, there in notes.items() if there)}</text>')
    for down, layout in enumerate(LAYOUTS):
        for across, precision in enumerate(PRECISIONS):
            out += draw_panel(cells, classes, layout, precision, LEFT + across * ACROSS, TOP + down * DOWN)
    with open(path, 'w') as file:
        file.write('\n'.join(out + ['</svg>']) + '\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build/release'))
    parser.add_argument('--only', choices=['table', 'chart'])
    parser.add_argument('--check', type=int, metavar='RANKS')
    parser.add_argument('--keep', metavar='FILE', help='of the chart: what is measured is kept in it and not measured again')
    parser.add_argument('--classes', type=int, nargs='+', default=CLASSES, help='of the chart')
    parser.add_argument('--chart', metavar='FILE', default=os.path.join(HERE, 'memory.svg'))
    wanted = parser.parse_args()
    build = os.path.abspath(wanted.build)
    if wanted.check:
        measure_table(build, SMALL, wanted.check)
        return
    if wanted.only != 'chart':
        write_table(*measure_table(build, TABLE, RANKS))
    if wanted.only != 'table':
        write_chart(measure_chart(build, wanted.classes, wanted.keep), wanted.classes, wanted.chart)


if __name__ == '__main__':
    main()
