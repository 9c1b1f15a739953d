#include "font.h"
#include "job.h"

#include <err.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include FT_OUTLINE_H
#include FT_BBOX_H

/* ---- files ---- */

static font_file *found; /* nftw hands its callback no context */
static int found_count;

static bool has_font_suffix(const char *path)
{
    const char *suffix = strrchr(path, '.');
    return suffix && (!strcasecmp(suffix, ".ttf") || !strcasecmp(suffix, ".ttc") || !strcasecmp(suffix, ".otf"));
}

static int add_file(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)where;
    if (kind != FTW_F || !has_font_suffix(path))
        return 0;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    found = must(reallocarray(found, (size_t)found_count + 1, sizeof *found));
    found[found_count++] = (font_file){
        .path = must(strdup(path)),
        .name = must(strndup(name, (size_t)(strrchr(name, '.') - name))),
        .bytes = status->st_size,
        .modified = status->st_mtime,
    };
    return 0;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const font_file *)a)->path, ((const font_file *)b)->path);
}

static void find_installed(void)
{
    const char *home = getenv("HOME");
    char own[4096];
    snprintf(own, sizeof own, "%s/.local/share/fonts", home ? home : "");
    const char *const roots[] = {"/usr/share/fonts", "/usr/local/share/fonts", own};
    for (int i = 0; i < 3; i++)
        nftw(roots[i], add_file, 16, FTW_PHYS); /* FTW_PHYS: a link would bring a font twice */
    if (found_count > 0)
        qsort(found, (size_t)found_count, sizeof *found, compare_paths);
}

static void add_to_list(font_list *list, const font_file *file)
{
    for (int i = 0; i < list->file_count; i++)
        if (strcmp(list->files[i].path, file->path) == 0)
            return;
    list->files = must(reallocarray(list->files, (size_t)list->file_count + 1, sizeof *list->files));
    list->files[list->file_count++] = *file;
}

void fonts_find(font_list *list, char *const *wishes, int wish_count)
{
    find_installed();
    int installed = found_count;
    for (int i = 0; i < installed && wish_count == 0; i++)
        add_to_list(list, &found[i]);
    for (int w = 0; w < wish_count; w++) {
        int before = list->file_count;
        if (strchr(wishes[w], '/')) {
            struct stat status;
            if (stat(wishes[w], &status) != 0)
                err(1, "%s", wishes[w]);
            int at = found_count;
            add_file(wishes[w], &status, S_ISREG(status.st_mode) ? FTW_F : FTW_D, NULL);
            if (found_count == at)
                errx(1, "%s: not a .ttf, .ttc or .otf file", wishes[w]);
            add_to_list(list, &found[at]);
        } else {
            for (int i = 0; i < installed; i++)
                if (strcasestr(found[i].name, wishes[w]))
                    add_to_list(list, &found[i]);
            if (list->file_count == before)
                errx(1, "no installed font has \"%s\" in its name (see --list)", wishes[w]);
        }
    }
    if (list->file_count == 0)
        errx(1, "no fonts are installed (Debian and Ubuntu: apt install fonts-wqy-zenhei fonts-arphic-uming ...)");
    qsort(list->files, (size_t)list->file_count, sizeof *list->files, compare_paths);
}

/* ---- faces ---- */

static FT_Face open_face(FT_Library library, const font_file *file, int index)
{
    FT_Face face;
    if (FT_New_Face(library, file->path, index, &face) != 0)
        errx(1, "%s: FreeType can't read face %d", file->path, index);
    return face;
}

/* Names the pictures of a font after its file, with a number where a file in another folder has the same name. */
static char *name_font(const font_list *list, const char *file, const char *face)
{
    char *name = NULL;
    for (int again = 1; !name; again++) {
        int length = again > 1 ? asprintf(&name, "%s%s~%d", file, face, again) : asprintf(&name, "%s%s", file, face);
        if (length < 0)
            errx(1, "no memory left");
        for (int i = 0; i < list->font_count && name; i++)
            if (strcmp(list->fonts[i].name, name) == 0) {
                free(name);
                name = NULL;
            }
    }
    return name;
}

static void list_face(font_list *list, int file, FT_Face face, int index)
{
    if (!FT_IS_SCALABLE(face) || FT_Select_Charmap(face, FT_ENCODING_UNICODE) != 0)
        return;
    font entry = {.file = file, .face = index, .covers = must(calloc(CODE_POINTS / 64, sizeof(uint64_t)))};
    char number[16] = "";
    if (face->num_faces > 1)
        snprintf(number, sizeof number, "-%d", index);
    entry.name = name_font(list, list->files[file].name, number);
    FT_UInt glyph;
    for (FT_ULong point = FT_Get_First_Char(face, &glyph); glyph; point = FT_Get_Next_Char(face, point, &glyph))
        if (point < CODE_POINTS)
            entry.covers[point / 64] |= (uint64_t)1 << point % 64;
    list->fonts = must(reallocarray(list->fonts, (size_t)list->font_count + 1, sizeof *list->fonts));
    list->fonts[list->font_count++] = entry;
}

static FT_Library start_freetype(void)
{
    FT_Library library;
    if (FT_Init_FreeType(&library) != 0)
        errx(1, "FreeType does not start");
    return library;
}

void fonts_open(font_list *list)
{
    FT_Library library = start_freetype();
    for (int file = 0; file < list->file_count; file++) {
        FT_Long faces = 1;
        for (int index = 0; index < faces; index++) {
            FT_Face face = open_face(library, &list->files[file], index);
            faces = face->num_faces;
            list_face(list, file, face, index);
            FT_Done_Face(face);
        }
    }
    FT_Done_FreeType(library);
}

font_faces font_faces_open(const font_list *list)
{
    font_faces open = {.freetype = start_freetype(), .count = list->font_count};
    open.faces = must(calloc((size_t)open.count + 1, sizeof *open.faces));
    for (int i = 0; i < open.count; i++) {
        open.faces[i] = open_face(open.freetype, &list->files[list->fonts[i].file], list->fonts[i].face);
        FT_Select_Charmap(open.faces[i], FT_ENCODING_UNICODE);
    }
    return open;
}

void font_faces_close(font_faces *open)
{
    FT_Done_FreeType(open->freetype); /* and its faces */
    free(open->faces);
}

/* ---- drawing ---- */

static void transform(FT_Outline *outline, double xx, double xy, double yx, double yy)
{
    const FT_Matrix matrix = {lrint(xx * 65536), lrint(xy * 65536), lrint(yx * 65536), lrint(yy * 65536)};
    FT_Outline_Transform(outline, &matrix);
}

static void apply_style(FT_Outline *outline, const glyph_style *style, double scale, int size)
{
    double x = scale * exp(style->stretch / 2), y = scale * exp(-style->stretch / 2);
    double c = cos(style->turn), s = sin(style->turn);
    transform(outline, c * x, (c * style->slant - s) * y, s * x, (s * style->slant + c) * y);
    if (style->weight != 0)
        FT_Outline_Embolden(outline, lrint(style->weight * size * 64));
}

/* Moves the outline, in 1/64 pixels, to where it is to be on the picture. */
static bool place(FT_Outline *outline, const glyph_style *style, int size)
{
    FT_BBox box;
    if (FT_Outline_Get_BBox(outline, &box) != 0 || box.xMax <= box.xMin || box.yMax <= box.yMin)
        return false;
    double room = (double)size * 64, inside = room * 15 / 16;
    double longer = (double)(box.xMax - box.xMin > box.yMax - box.yMin ? box.xMax - box.xMin : box.yMax - box.yMin);
    double scale = inside * style->scale / longer, free_room = inside * (1 - style->scale) / 2;
    transform(outline, scale, 0, 0, scale);
    FT_Outline_Get_BBox(outline, &box);
    FT_Outline_Translate(outline, lrint(room / 2 + free_room * style->right) - (box.xMin + box.xMax) / 2,
                         lrint(room / 2 + free_room * style->up) - (box.yMin + box.yMax) / 2);
    return true;
}

bool glyph_draw(FT_Face face, uint32_t point, const glyph_style *style, int size, uint8_t *pixels)
{
    FT_UInt glyph = FT_Get_Char_Index(face, point);
    if (glyph == 0 || FT_Load_Glyph(face, glyph, FT_LOAD_NO_SCALE | FT_LOAD_NO_BITMAP) != 0 ||
        face->glyph->format != FT_GLYPH_FORMAT_OUTLINE || face->glyph->outline.n_points == 0)
        return false;
    FT_Outline *outline = &face->glyph->outline;
    apply_style(outline, style, (double)size * 64 / face->units_per_EM, size);
    if (!place(outline, style, size))
        return false;
    memset(pixels, 0, (size_t)size * (size_t)size);
    FT_Bitmap bitmap = {.rows = (unsigned)size,
                        .width = (unsigned)size,
                        .pitch = size,
                        .buffer = pixels,
                        .num_grays = 256,
                        .pixel_mode = FT_PIXEL_MODE_GRAY};
    if (FT_Outline_Get_Bitmap(face->glyph->library, outline, &bitmap) != 0)
        return false;
    bool drawn = false;
    for (int i = 0; i < size * size; i++) {
        drawn |= pixels[i] > 0;
        pixels[i] = (uint8_t)(255 - pixels[i]);
    }
    return drawn;
}
