package deliverable

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/xuri/excelize/v2"
)

const (
	maxCell      = 32_767 // units of UTF-16 in a cell
	maxSheetName = 31
	narrowest    = 8
	widest       = 60
)

// workbook makes a sheet of each table, named by the heading above it. A text without a table is
// one sheet of text.
func workbook(ctx context.Context, d *doc, at time.Time) (_ []byte, err error) {
	f := excelize.NewFile()
	defer func() { _ = f.Close() }()
	w := &book{ctx: ctx, f: f, used: map[string]bool{"history": true}, styles: map[string]int{}} // Excel keeps "History"
	if w.header, err = f.NewStyle(&excelize.Style{
		Font: &excelize.Font{Bold: true}, Fill: excelize.Fill{Type: "pattern", Pattern: 1, Color: []string{"E8EDF5"}},
		Alignment: &excelize.Alignment{Vertical: "top", WrapText: true},
	}); err != nil {
		return nil, err
	}
	if w.wrapped, err = f.NewStyle(&excelize.Style{Alignment: &excelize.Alignment{Vertical: "top", WrapText: true}}); err != nil {
		return nil, err
	}
	if w.link, err = f.NewStyle(&excelize.Style{Font: &excelize.Font{Color: "0563C1", Underline: "single"}, Alignment: &excelize.Alignment{Vertical: "top"}}); err != nil {
		return nil, err
	}
	above := ""
	for i := range d.blocks {
		switch b := &d.blocks[i]; b.kind {
		case heading:
			above = b.plain()
		case table:
			if err := w.table(b, above); err != nil {
				return nil, err
			}
		}
	}
	if w.sheets == 0 {
		if err := w.text(d); err != nil {
			return nil, err
		}
	}
	stamp := at.Format(time.RFC3339)
	if err := f.SetDocProps(&excelize.DocProperties{Title: d.title(), Creator: "svc", Created: stamp, Modified: stamp, LastModifiedBy: "svc"}); err != nil {
		return nil, err
	}
	f.SetActiveSheet(0)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := f.WriteToBuffer()
	if err != nil {
		return nil, fmt.Errorf("write a workbook: %w", err)
	}
	return repack(b.Bytes(), at)
}

// repack sorts the parts of an archive and gives them one time, so that the same text makes the same
// bytes.
func repack(content []byte, at time.Time) ([]byte, error) {
	from, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, fmt.Errorf("read the workbook: %w", err)
	}
	slices.SortStableFunc(from.File, func(a, b *zip.File) int { return cmp.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	to := zip.NewWriter(&out)
	for _, f := range from.File {
		if f.Name == typesPart {
			if err := repackTypes(to, f, at); err != nil {
				return nil, err
			}
			continue
		}
		r, err := f.OpenRaw()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name, err)
		}
		w, err := to.CreateRaw(&zip.FileHeader{Name: f.Name, Method: f.Method, Modified: at, CRC32: f.CRC32,
			CompressedSize64: f.CompressedSize64, UncompressedSize64: f.UncompressedSize64})
		if err == nil {
			_, err = io.Copy(w, r)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", f.Name, err)
		}
	}
	if err := to.Close(); err != nil {
		return nil, fmt.Errorf("write the workbook: %w", err)
	}
	return out.Bytes(), nil
}

const typesPart = "[Content_Types].xml"

// imageTypeRE matches the types of images, which excelize lists in random order. There are no images.
var imageTypeRE = regexp.MustCompile(`<Default Extension="[a-z]+" ContentType="image/[^"]*"></Default>`)

func repackTypes(to *zip.Writer, f *zip.File, at time.Time) error {
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("read %s: %w", f.Name, err)
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, MaxOutput))
	if err != nil {
		return fmt.Errorf("read %s: %w", f.Name, err)
	}
	return writePart(to, f.Name, imageTypeRE.ReplaceAllString(string(content), ""), at)
}

type book struct {
	ctx    context.Context
	f      *excelize.File
	used   map[string]bool // names of sheets, folded
	styles map[string]int  // by number format
	sheets int
	links  int

	header, wrapped, link int
}

// sheet adds a sheet.
func (w *book) sheet(name string) (string, error) {
	name = w.unique(sheetName(name))
	w.sheets++
	if w.sheets == 1 {
		return name, w.f.SetSheetName("Sheet1", name)
	}
	_, err := w.f.NewSheet(name)
	return name, err
}

// sheetName replaces what no name of a sheet may contain.
func sheetName(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case strings.ContainsRune(`:\/?*[]`, r), unicode.IsSpace(r):
			return ' '
		case unicode.Is(unicode.C, r):
			return -1
		}
		return r
	}, s)
	s = strings.Trim(strings.Join(strings.Fields(s), " "), "' ")
	s = strings.ReplaceAll(s, "'", "’") // a reference to the sheet would have to double it, and that of a filter does not
	return strings.TrimSpace(cutUnits(s, maxSheetName))
}

// folded returns a name as Excel compares it: without case. Some letters have several small forms (µ and μ, σ and ς).
func folded(name string) string { return strings.ToLower(strings.ToUpper(name)) }

func (w *book) unique(name string) string {
	if name == "" {
		name = "Table"
	}
	out := name
	for n := 2; w.used[folded(out)]; n++ {
		end := " (" + strconv.Itoa(n) + ")"
		out = strings.TrimRight(cutUnits(name, maxSheetName-len(end)), " ") + end
	}
	w.used[folded(out)] = true
	return out
}

func (w *book) table(b *block, above string) error {
	name, err := w.sheet(above)
	if err != nil {
		return fmt.Errorf("add a sheet: %w", err)
	}
	header, rows := b.values()
	widths := make([]int, len(header))
	for i, h := range header {
		if err := w.set(name, i, 0, value{data: h}, w.header); err != nil {
			return err
		}
		widths[i] = width(h) + 3 // the button of the filter
	}
	rtl := 0
	for r, row := range rows {
		if r%256 == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		for c, v := range row {
			if v.data == nil {
				continue
			}
			style, err := w.style(v)
			if err != nil {
				return err
			}
			if text, ok := v.data.(string); ok {
				widths[c] = max(widths[c], width(text))
				if target := w.target(b.rows[r+1][c]); target != "" {
					at, _ := excelize.CoordinatesToCellName(c+1, r+2)
					if err := w.f.SetCellHyperLink(name, at, target, "External"); err != nil {
						return fmt.Errorf("set a link: %w", err)
					}
					style = w.link
				}
			} else {
				widths[c] = max(widths[c], len(b.rows[r+1][c])+2)
			}
			if err := w.set(name, c, r+1, v, style); err != nil {
				return err
			}
		}
	}
	for i, n := range widths {
		column, _ := excelize.ColumnNumberToName(i + 1)
		if err := w.f.SetColWidth(name, column, column, float64(min(max(n+1, narrowest), widest))); err != nil {
			return fmt.Errorf("set the width of a column: %w", err)
		}
		if rightToLeft(header[i]) {
			rtl++
		}
	}
	if err := w.f.SetPanes(name, &excelize.Panes{Freeze: true, YSplit: 1, TopLeftCell: "A2", ActivePane: "bottomLeft"}); err != nil {
		return fmt.Errorf("freeze the header: %w", err)
	}
	last, _ := excelize.CoordinatesToCellName(len(header), len(rows)+1)
	if err := w.f.AutoFilter(name, "A1:"+last, nil); err != nil {
		return fmt.Errorf("add the filter: %w", err)
	}
	if err := w.direction(name, rtl*2 > len(header)); err != nil {
		return err
	}
	if draw := b.drawing(header, rows); draw != nil {
		return w.chart(name, above, draw, len(header))
	}
	return nil
}

// direction makes a sheet begin at the right.
func (w *book) direction(name string, rtl bool) error {
	if !rtl {
		return nil
	}
	if err := w.f.SetSheetView(name, 0, &excelize.ViewOptions{RightToLeft: &rtl}); err != nil {
		return fmt.Errorf("set the direction of a sheet: %w", err)
	}
	return nil
}

// target returns the link of a cell that is one link.
func (w *book) target(src string) string {
	if w.links >= maxLinks || !strings.ContainsAny(src, "<:[") {
		return ""
	}
	if s := inline(src); len(s) == 1 && s[0].link != "" && !strings.ContainsRune(s[0].link, '#') {
		w.links++
		return s[0].link
	}
	return ""
}

func (w *book) style(v value) (int, error) {
	if _, ok := v.data.(string); ok {
		return w.wrapped, nil
	}
	if v.format == "" {
		return 0, nil
	}
	style, ok := w.styles[v.format]
	if !ok {
		var err error
		form := v.format
		if style, err = w.f.NewStyle(&excelize.Style{CustomNumFmt: &form, Alignment: &excelize.Alignment{Vertical: "top"}}); err != nil {
			return 0, fmt.Errorf("add a number format: %w", err)
		}
		w.styles[v.format] = style
	}
	return style, nil
}

// set writes a cell. Texts go through SetCellStr alone, so that none becomes a formula.
func (w *book) set(sheet string, column, row int, v value, style int) error {
	at, err := excelize.CoordinatesToCellName(column+1, row+1)
	if err != nil {
		return err
	}
	switch x := v.data.(type) {
	case string:
		err = w.f.SetCellStr(sheet, at, cutUnits(x, maxCell))
	case bool:
		err = w.f.SetCellBool(sheet, at, x)
	case float64:
		err = w.f.SetCellFloat(sheet, at, x, -1, 64)
	case time.Time:
		err = w.f.SetCellFloat(sheet, at, serial(x), -1, 64)
	}
	if err == nil && style != 0 {
		err = w.f.SetCellStyle(sheet, at, at, style)
	}
	if err != nil {
		return fmt.Errorf("set a cell: %w", err)
	}
	return nil
}

// serial returns a time as spreadsheets count: days since 30 December 1899.
func serial(t time.Time) float64 {
	return t.Sub(time.Date(1899, 12, 30, 0, 0, 0, 0, time.UTC)).Seconds() / 86400
}

// text makes one sheet of the text, a line for each block.
func (w *book) text(d *doc) error {
	name, err := w.sheet(d.title())
	if err != nil {
		return err
	}
	rtl := false
	row := 0
	for i := range d.blocks {
		if i%256 == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		b := &d.blocks[i]
		if b.kind == rule {
			continue
		}
		text, style := b.line(), w.wrapped
		if b.kind == heading {
			style = w.header
		}
		rtl = rtl || row == 0 && rightToLeft(text)
		if err := w.set(name, 0, row, value{data: text}, style); err != nil {
			return err
		}
		row++
	}
	if err := w.f.SetColWidth(name, "A", "A", 100); err != nil {
		return err
	}
	return w.direction(name, rtl)
}

// line returns a block as plain text with its mark.
func (b *block) line() string {
	switch b.kind {
	case code:
		return b.text
	case item:
		mark := "• "
		if b.ordered {
			mark = strconv.Itoa(b.number) + ". "
		}
		return strings.Repeat("    ", b.depth-1) + mark + b.plain()
	}
	return b.plain()
}

// chart draws a table at its right side.
func (w *book) chart(sheet, title string, d *drawing, columns int) error {
	kind := map[chartKind]excelize.ChartType{columnChart: excelize.Col, barChart: excelize.Bar, lineChart: excelize.Line, pieChart: excelize.Pie}[d.kind]
	c := &excelize.Chart{Type: kind, Legend: excelize.ChartLegend{Position: "bottom"}, Dimension: excelize.ChartDimension{Width: 640, Height: 400}}
	if title != "" {
		c.Title = excelize.ChartTitle{Paragraph: []excelize.RichTextRun{{Text: cutRunes(title, 100)}}}
	}
	quoted := "'" + sheet + "'"
	cells := func(column, from, to int) string {
		name, _ := excelize.ColumnNumberToName(column + 1)
		out := quoted + "!$" + name + "$" + strconv.Itoa(from)
		if to > from {
			out += ":$" + name + "$" + strconv.Itoa(to)
		}
		return out
	}
	for _, s := range d.series {
		last := len(d.categories) + 1
		c.Series = append(c.Series, excelize.ChartSeries{Name: cells(s.column, 1, 1), Categories: cells(0, 2, last), Values: cells(s.column, 2, last)})
	}
	at, _ := excelize.CoordinatesToCellName(columns+2, 2)
	if err := w.f.AddChart(sheet, at, c); err != nil {
		return fmt.Errorf("add a chart: %w", err)
	}
	return nil
}

// width returns how wide a text is shown: its longest line, wide characters counted twice.
func width(s string) int {
	widestLine, n := 0, 0
	for _, r := range s {
		switch {
		case r == '\n':
			n = 0
			continue
		case r >= 0x1100 && unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana):
			n += 2
		case !unicode.Is(unicode.Mn, r):
			n++
		}
		if widestLine = max(widestLine, n); widestLine > widest {
			break
		}
	}
	return widestLine
}

// rightToLeft reports whether the first letter of a text is of a script written from right to left.
func rightToLeft(s string) bool {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if unicode.IsLetter(r) {
			return unicode.In(r, unicode.Hebrew, unicode.Arabic, unicode.Syriac, unicode.Thaana, unicode.Nko)
		}
		i += n
	}
	return false
}
