package read

import (
	"math"
	"strconv"
	"strings"

	"agentsvc/schemas/document"
)

const (
	// mostShared limits the table of texts that the cells of a workbook share, in bytes.
	mostShared = 48 << 20
	// mostColumns is the number of columns that a sheet can have.
	mostColumns = 16384
	// mostGap limits how many empty cells in a row are kept as such.
	mostGap = 16
	// longestRow limits what is kept of a row before it is passed on, in bytes.
	longestRow = 4 << 20
)

// texts is the table of shared texts, in one piece.
type texts struct {
	all  []byte
	ends []uint32
}

func (t *texts) at(i int) string {
	if i < 0 || i >= len(t.ends) {
		return ""
	}
	from := uint32(0)
	if i > 0 {
		from = t.ends[i-1]
	}
	return string(t.all[from:t.ends[i]])
}

type workbook struct {
	f       *file
	shared  texts
	formats []*numberFormat // by style of a cell
	since   float64         // days from 1900 to the workbook's first day
}

// readXlsx reads the visible sheets in their order. A sheet is a heading and a table, whose
// first row is the header; cells are written as a person sees them.
func readXlsx(f *file, a *archive) error {
	if err := f.core(a); err != nil {
		return err
	}
	const main = "xl/workbook.xml"
	targets, types, err := a.relations(main)
	if err != nil {
		return err
	}
	w := &workbook{f: f}
	type sheet struct{ name, part string }
	var sheets []sheet
	all := 0
	err = a.xml(main, handler{start: func(e *element) (bool, error) {
		switch e.Name.Local {
		case "workbookPr":
			if v := e.attr("date1904"); v == "1" || v == "true" {
				w.since = 1462
			}
		case "sheet":
			if all++; all > f.lim.Sheets {
				return false, faultf("the workbook has more than %d sheets", f.lim.Sheets)
			}
			if state := e.attr("state"); state == "" || state == "visible" {
				sheets = append(sheets, sheet{e.attr("name"), targets[e.relation("id")]})
			}
		}
		return false, nil
	}})
	if err != nil {
		return err
	}
	for id, kind := range types {
		switch {
		case !a.has(targets[id]):
		case kind == "sharedStrings":
			err = w.readShared(a, targets[id])
		case kind == "styles":
			err = w.readStyles(a, targets[id])
		}
		if err != nil {
			return damaged(err, a.what)
		}
	}
	for _, s := range sheets {
		if a.has(s.part) && !strings.Contains(s.part, "chartsheets/") {
			if err := w.readSheet(a, s.name, s.part); err != nil {
				return damaged(err, a.what)
			}
		}
	}
	return nil
}

func (w *workbook) readShared(a *archive, name string) error {
	inText := false
	return a.xml(name, handler{
		start: func(e *element) (bool, error) {
			inText = e.Name.Local == "t"
			return e.Name.Local == "rPh", nil // how a text is pronounced
		},
		end: func(local string) error {
			inText = false
			if local == "si" {
				w.shared.ends = append(w.shared.ends, uint32(len(w.shared.all)))
			}
			return nil
		},
		text: func(text string) error {
			if inText {
				w.shared.all = append(w.shared.all, text...)
			}
			if len(w.shared.all)+4*len(w.shared.ends) > mostShared {
				return faultf("the workbook has more than %d MiB of texts in its cells", mostShared>>20)
			}
			return nil
		},
	})
}

// mostFormats limits the styles of cells that are read; Excel allows 65,490.
const mostFormats = 65_536

func (w *workbook) readStyles(a *archive, name string) error {
	codes := map[int]string{}
	known := map[int]*numberFormat{}
	return a.xml(name, handler{start: func(e *element) (bool, error) {
		switch e.Name.Local {
		case "numFmt":
			if n, err := strconv.Atoi(e.attr("numFmtId")); err == nil && len(codes) < mostFormats {
				codes[n] = e.attr("formatCode")
			}
		case "xf":
			if len(e.parents) == 0 || e.parents[len(e.parents)-1] != "cellXfs" || len(w.formats) >= mostFormats {
				return false, nil
			}
			n, _ := strconv.Atoi(e.attr("numFmtId")) // 0 is the general format
			format := known[n]
			if format == nil {
				code, own := codes[n]
				if !own {
					code = builtinFormats[n]
				}
				format = parseFormat(code)
				known[n] = format
			}
			w.formats = append(w.formats, format)
		}
		return false, nil
	}})
}

func (w *workbook) readSheet(a *archive, name, part string) error {
	t := &table{f: w.f}
	began := false
	var row []string
	size, column := 0, 0
	kind, style, value := "", 0, strings.Builder{}
	inValue := false
	emit := func() error {
		cells := row
		row, size = row[:0], 0
		if strings.TrimSpace(strings.Join(cells, "")) == "" {
			return nil
		}
		if !began {
			began = true
			if err := w.f.block(document.Block{Kind: document.Heading, Level: 1, Text: name}); err != nil {
				return err
			}
		}
		return t.row(cells)
	}
	err := a.xml(part, handler{
		start: func(e *element) (bool, error) {
			switch e.Name.Local {
			case "row":
				row, size, column = row[:0], 0, 0
			case "c":
				at := columnOf(e.attr("r"))
				if at < 0 {
					at = column
				}
				for gap := 0; column < at && gap < mostGap && len(row) < mostColumns; gap++ {
					row = append(row, "")
					column++
				}
				column = at + 1
				kind = e.attr("t")
				style, _ = strconv.Atoi(e.attr("s")) // 0 is the first style
				value.Reset()
			case "v", "t":
				inValue = true
			case "f", "rPh", "extLst", "dataValidations", "conditionalFormatting":
				return true, nil
			case "oddHeader", "oddFooter":
				return true, nil
			}
			return false, nil
		},
		text: func(text string) error {
			if inValue && value.Len()+len(text) <= longestRow {
				value.WriteString(text)
			}
			return nil
		},
		end: func(local string) error {
			switch local {
			case "v", "t":
				inValue = false
			case "c":
				if len(row) >= mostColumns {
					return nil
				}
				text := w.shown(kind, style, value.String())
				row = append(row, text)
				if size += len(text); size > longestRow {
					return emit()
				}
			case "row":
				return emit()
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	return t.end()
}

// shown is the value of a cell as a person sees it.
func (w *workbook) shown(kind string, style int, value string) string {
	switch kind {
	case "s":
		n, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil {
			return ""
		}
		return w.shared.at(n)
	case "str", "inlineStr", "e":
		return value
	case "d":
		return strings.Replace(strings.TrimSuffix(value, "T00:00:00"), "T", " ", 1)
	case "b":
		if value == "1" || value == "true" {
			return "TRUE"
		}
		return "FALSE"
	}
	value = strings.TrimSpace(value)
	n, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return value
	}
	if style < 0 || style >= len(w.formats) {
		return general(n)
	}
	return w.formats[style].show(n, w.since)
}

// columnOf returns the column of a reference like "B7", from 0; -1 if it is none.
func columnOf(ref string) int {
	n := 0
	for i := 0; i < len(ref) && i < 4; i++ {
		c := ref[i]
		if c < 'A' || c > 'Z' {
			break
		}
		n = n*26 + int(c-'A') + 1
	}
	if n > mostColumns {
		return -1
	}
	return n - 1
}
