/* Fonts as they are installed: which files, which faces and code points in
 * them, and one glyph of one face as a picture. */
#ifndef GLYPHS_FONT_H
#define GLYPHS_FONT_H

#include <stdbool.h>
#include <stdint.h>

#include <ft2build.h>
#include FT_FREETYPE_H

#define CODE_POINTS 0x110000

typedef struct font_file {
    char *path;
    char *name; /* the path's last part without its suffix */
    int64_t bytes, modified;
} font_file;

/* A face of a file: collections (.ttc) have several. */
typedef struct font {
    int file;         /* index of the font_file */
    int face;         /* in the file */
    char *name;       /* the file's, with "-face" in a collection */
    uint64_t *covers; /* a bit for each code point */
} font;

typedef struct font_list {
    font_file *files;
    int file_count;
    font *fonts;
    int font_count;
} font_list;

/*
 * Adds font files (.ttf, .ttc, .otf), sorted by path. A wish is the path of a
 * file if it has a slash in it, else a part of the name of installed ones;
 * without wishes all installed ones are taken. Installed are those under
 * /usr/share/fonts, /usr/local/share/fonts and ~/.local/share/fonts. Ends the
 * program if a file can't be read or a wish fits none.
 */
void fonts_find(font_list *list, char *const *wishes, int wish_count);

/* Opens the files and lists the faces with outlines and their code points. */
void fonts_open(font_list *list);

static inline bool font_covers(const font *face, uint32_t point)
{
    return face->covers[point / 64] >> point % 64 & 1;
}

/* One thread's open faces, in the order of list->fonts. */
typedef struct font_faces {
    FT_Library freetype;
    FT_Face *faces;
    int count;
} font_faces;
font_faces font_faces_open(const font_list *list);
void font_faces_close(font_faces *open);

/* How a glyph is drawn, beyond plain ({.scale = 1}). */
typedef struct glyph_style {
    double turn;      /* radians */
    double slant;     /* x += slant * y */
    double stretch;   /* width over height is multiplied by the exponential of it */
    double weight;    /* strokes become wider by this part of the picture's size */
    double scale;     /* of the largest that fits, at most 1 */
    double right, up; /* in [-1, 1]: of the free room that scale leaves */
} glyph_style;

/*
 * Draws the whole glyph, black on white, as large as it fits with a small
 * margin, centred: pixels is uint8 [size, size]. False if the face has no such
 * glyph or an empty one.
 */
bool glyph_draw(FT_Face face, uint32_t point, const glyph_style *style, int size, uint8_t *pixels);

#endif
