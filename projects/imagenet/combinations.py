#!/usr/bin/env python3
"""Measures how the ways of sharing a training run out combine, on 4 ranks: data parallel and
split final layers x precision x ZeRO. Writes the table into README.md beside this file, and
the memory over the number of classes as a bar chart, memory.svg.

    tools/build release && projects/imagenet/combinations.py          # all, some 10 minutes
    projects/imagenet/combinations.py --only table --build build/gcc  # one of the two
    projects/imagenet/combinations.py --check 3 --build build/gcc     # the losses alone, of small runs on 3 ranks

It fails, and writes no table, where losses are not the single process's within BOUNDS, or a
stage's not to the bit those without ZeRO.
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

# All steps have the same images, so that what training does to the loss is seen at once.
RUN = '-a resnet18 --stem small --image-size 16 --val-interval 0 -j 1 --seed 7 --sync-bn --bucket-mib 4'
TABLE = RUN + f' --synthetic {BATCH} --num-classes 10000 -b {BATCH} --lr 1e-4 --steps {STEPS}'
SMALL = TABLE + ' --image-size 8 --num-classes 101'
CHART = RUN + f' --synthetic 32 -b {BATCH} --lr 1e-5 --steps 2 --num-classes {{}}'

CLASSES = [1000, 10000, 100000, 1000000]
HEAD = 512 + 1 # numbers of a class
SERIES = [  # name, layout, precision, stage, colour
    ('DDP', 'DDP', 'float32', 'none', '#4c566a'),
    ('DDP, ZeRO 3', 'DDP', 'float32', '3', '#8f9bb3'),
    ('row', 'row', 'float32', 'none', '#b5651d'),
    ('2 × 2', '2 × 2', 'float32', 'none', '#5b8e3e'),
    ('column', 'column', 'float32', 'none', '#2f6db5'),
    ('column, ZeRO 3', 'column', 'float32', '3', '#8fb8e8'),
]


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
            whole = losses if stage == 'none' else whole
            differences = [abs(loss - alone['loss']) / moved for loss, alone in zip(losses, single, strict=True)]
            difference = math.nan if any(map(math.isnan, differences)) else max(differences)
            rows.append((layout, precision, stage, losses[-1], difference, lines[-1]['memory_mib']['peak']))
            worst[precision] = max(worst[precision], difference)
            if not difference <= BOUNDS[precision]:
                wrong.append(f'{layout}, {precision}, ZeRO {stage}: {difference:.1e}, more than {BOUNDS[precision]:.0e}')
            if losses != whole:
                wrong.append(f'{layout}, {precision}: ZeRO {stage} ends with {losses[-1]}, without {whole[-1]}')
            print(f'{layout:8}{precision:9}ZeRO {stage:6}loss {rows[-1][3]:.6f}  {difference:.1e}{rows[-1][5]:10.1f} MiB', flush=True)
    if wrong:
        sys.exit('losses are not those of one process: ' + '; '.join(wrong))
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
        return next(int(line.split()[1]) for line in file if line.startswith('MemAvailable')) / 1024


def measure_chart(build):
    """None where the machine has not the memory for all ranks' heads, three times over. A data
    parallel rank has what one process has with the rank's images, which is run instead then."""
    values = []
    for classes in CLASSES:
        row = []
        for name, layout, precision, stage, _ in SERIES:
            heads = {'DDP': RANKS, '2 × 2': 2}.get(layout, 1)
            ranks, options = RANKS, f'{CHART.format(classes)} {cell(layout, precision, stage)}'
            head = 1.3 * 12 * HEAD * classes / 2**20
            if heads * head > available_mib() and layout == 'DDP' and stage == 'none':
                ranks, heads, options = 1, 1, options + f' -b {BATCH // RANKS}'
            fits = heads * head < available_mib()
            row.append(run(build, ranks, options)[-1]['memory_mib']['peak'] if fits else None)
            print(f'{classes:9} classes  {name:22}' + (f'{row[-1]:10.1f} MiB' if fits else '   does not fit'), flush=True)
        values.append(row)
    return values


def write_chart(values):
    width, height, left, top, bottom = 870, 420, 80, 50, 60
    low, high = 10.0, 10 ** math.ceil(math.log10(max(mib for row in values for mib in row if mib)))
    inside = height - top - bottom

    def y(mib):
        return top + inside * (1 - math.log(max(mib, low) / low) / math.log(high / low))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="18" font-size="14">Memory of a rank at its peak, ResNet-18 on {RANKS} ranks, by classes</text>']
    for i, (name, *_, colour) in enumerate(SERIES):
        x = left + i * 125
        out.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{colour}"/><text x="{x + 14}" y="37">{name}</text>')
    mark = low
    while mark <= high:
        label = f'{mark:,.0f} MiB'
        out.append(f'<line x1="{left}" x2="{width - 10}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{label}</text>')
        mark *= 10
    group = (width - left - 10) / len(CLASSES)
    bar = group * 0.86 / len(SERIES)
    for g, classes in enumerate(CLASSES):
        start = left + g * group + group * 0.07
        for i, mib in enumerate(values[g]):
            if mib is None:
                out.append(f'<text x="{start + (i + 0.5) * bar:.1f}" y="{top + inside - 4}" font-size="9" text-anchor="middle">–</text>')
                continue
            x, at = start + i * bar, y(mib)
            out.append(f'<rect x="{x:.1f}" y="{at:.1f}" width="{bar - 2:.1f}" height="{top + inside - at:.1f}" fill="{SERIES[i][4]}">'
                       f'<title>{SERIES[i][0]}, {classes:,} classes: {mib:.0f} MiB</title></rect>'
                       f'<text x="{x + bar / 2 - 1:.1f}" y="{at - 3:.1f}" font-size="9" text-anchor="middle">{mib:.0f}</text>')
        out.append(f'<text x="{start + group * 0.43:.1f}" y="{height - bottom + 18}" text-anchor="middle">{classes:,}</text>')
    out.append(f'<text x="{(left + width) / 2:.0f}" y="{height - 16}" text-anchor="middle">classes; MiB above each bar, – where the four ranks do not fit into the measuring machine</text></svg>')
    with open(os.path.join(HERE, 'memory.svg'), 'w') as file:
        file.write('\n'.join(out) + '\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build/release'))
    parser.add_argument('--only', choices=['table', 'chart'])
    parser.add_argument('--check', type=int, metavar='RANKS')
    wanted = parser.parse_args()
    build = os.path.abspath(wanted.build)
    if wanted.check:
        measure_table(build, SMALL, wanted.check)
        return
    if wanted.only != 'chart':
        write_table(*measure_table(build, TABLE, RANKS))
    if wanted.only != 'table':
        write_chart(measure_chart(build))


if __name__ == '__main__':
    main()
