/* The command line of make-glyphs. */
#include "job.h"
#include "png.h"

#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "usage: make-glyphs OUT [option ...]\n"
                            "Draws characters from installed fonts into the image folder OUT.\n"
                            "  --fonts LIST       fonts to use, separated by commas: files, or parts of the names of\n"
                            "                     installed fonts (all of them)\n"
                            "  --val-font LIST    parts of the names of fonts to keep out of training; the first draws\n"
                            "                     OUT/val, others are those that were derived from it\n"
                            "  --classes N        the N characters that most training fonts have (all)\n"
                            "  --min-fonts K      only characters that K training fonts or more draw, each in its own way (2)\n"
                            "  --range A-B,...    only these code points, hexadecimal (all but private ones)\n"
                            "  --size PIXELS      8 to 128 (32)\n"
                            "  --variants K       pictures of each character and training font: the plain one and K - 1\n"
                            "                     slightly turned, slanted, stretched and of other weight (1)\n"
                            "  -j, --threads N    threads (one for each processor)\n"
                            "  --list             only prints which font has how many characters\n"
                            "  --dry-run          also chooses the classes, but draws nothing\n"
                            "  -h, --help         prints this\n";

static long parse_number(const char *name, const char *text, long low, long high)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        errx(2, "--%s %s: not a whole number from %ld to %ld", name, text, low, high);
    return value;
}

static void parse_ranges(settings *set, char *text)
{
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        char *end;
        unsigned long first = strtoul(part, &end, 16), last = first;
        if (end != part && *end == '-')
            last = strtoul(end + 1, &end, 16);
        if (end == part || *end || first > last || last >= CODE_POINTS)
            errx(2, "--range %s: not FIRST-LAST in hexadecimal, at most 10FFFF", part);
        if (set->range_count == MAX_RANGES)
            errx(2, "--range: more than %d ranges", MAX_RANGES);
        set->ranges[set->range_count++] = (range){(uint32_t)first, (uint32_t)last};
    }
}

static void add_names(name_list *list, const char *option, char *text)
{
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        if (list->count == MAX_NAMES)
            errx(2, "--%s: more than %d of them", option, MAX_NAMES);
        list->names[list->count++] = part;
    }
}

static void parse_option(settings *set, int option)
{
    switch (option) {
    case 'f':
        add_names(&set->wishes, "fonts", optarg);
        break;
    case 'v':
        add_names(&set->val_fonts, "val-font", optarg);
        break;
    case 'c':
        set->classes = parse_number("classes", optarg, 1, CODE_POINTS);
        break;
    case 'm':
        set->min_fonts = parse_number("min-fonts", optarg, 1, 1000);
        break;
    case 'r':
        parse_ranges(set, optarg);
        break;
    case 's':
        set->size = parse_number("size", optarg, 8, PNG_MAX_SIZE);
        break;
    case 'k':
        set->variants = parse_number("variants", optarg, 1, 1000);
        break;
    case 'j':
        set->threads = parse_number("threads", optarg, 1, MAX_THREADS);
        break;
    case 'l':
        set->list = true;
        break;
    case 'd':
        set->dry_run = true;
        break;
    case 'h':
        fputs(usage, stdout);
        exit(0);
    default:
        exit(2);
    }
}

settings parse_arguments(int argc, char **argv)
{
    static const struct option options[] = {
        {"fonts", required_argument, NULL, 'f'},    {"val-font", required_argument, NULL, 'v'},
        {"classes", required_argument, NULL, 'c'},  {"min-fonts", required_argument, NULL, 'm'},
        {"range", required_argument, NULL, 'r'},    {"size", required_argument, NULL, 's'},
        {"variants", required_argument, NULL, 'k'}, {"threads", required_argument, NULL, 'j'},
        {"list", no_argument, NULL, 'l'},           {"dry-run", no_argument, NULL, 'd'},
        {"help", no_argument, NULL, 'h'},           {0},
    };
    settings set = {.min_fonts = 2, .size = 32, .variants = 1, .threads = sysconf(_SC_NPROCESSORS_ONLN)};
    set.threads = set.threads < MAX_THREADS ? set.threads : MAX_THREADS;
    int option;
    while ((option = getopt_long(argc, argv, "j:h", options, NULL)) != -1)
        parse_option(&set, option);
    if (optind < argc)
        set.out = argv[optind++];
    if (optind < argc)
        errx(2, "%s: one folder is enough; fonts are named with --fonts", argv[optind]);
    if (!set.out && !set.list && !set.dry_run)
        errx(2, "where to? make-glyphs OUT --val-font NAME (see --help)");
    if (set.val_fonts.count == 0 && !set.list)
        errx(2, "--val-font is needed: a part of the name of the font to keep out of training (see --list)");
    return set;
}
