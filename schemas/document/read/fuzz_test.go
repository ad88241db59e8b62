package read

import (
	"bytes"
	"cmp"
	"compress/lzw"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"agentsvc/schemas/document"
)

// readFuzzed holds that a file ends with blocks that can be stored, or with a fault, and that no reader panics over it.
func readFuzzed(t *testing.T, name string, data []byte) {
	lim := Limits{ExpandedBytes: 4 << 20, Pages: 50, Sheets: 20, TextBytes: 4 << 20, Panics: true}
	total := int64(0)
	meta, err := Read(bytes.NewReader(data), int64(len(data)), name, "", lim, func(b document.Block) error {
		total += int64(len(b.Text))
		for _, text := range []string{b.Text, b.Header} {
			if len(text) > pieceBytes || !stored(text) {
				t.Fatalf("a block of %d bytes: %.200q", len(text), text)
			}
		}
		if b.Text == "" || total > lim.TextBytes || b.Page < 0 || b.Level < 0 || b.Kind > document.Code {
			t.Fatalf("%d bytes, block %+v", total, b)
		}
		return nil
	})
	if err != nil && !errors.As(err, new(*document.Fault)) {
		t.Fatalf("%v is no fault", err)
	}
	if utf8.RuneCountInString(meta.Title) > titleRunes || !stored(meta.Title) || err == nil && meta.MediaType == "" {
		t.Fatalf("%+v", meta)
	}
}

// stored reports whether the database takes a text.
func stored(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' })
}

func fuzz(f *testing.F, name string, seeds ...[]byte) {
	fuzzPart(f, name, func(part []byte) []byte { return part }, seeds...)
}

// fuzzPart changes a part of a file: a change of the bytes of an archive seldom leaves one that can be opened, and FuzzRead makes those.
func fuzzPart(f *testing.F, name string, file func(part []byte) []byte, seeds ...[]byte) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, part []byte) { readFuzzed(t, name, file(part)) })
}

func FuzzText(f *testing.F) { fuzz(f, "x.txt", []byte("a\n\nb\fc"), []byte("\xff\xfea\x00")) }
func FuzzMarkdown(f *testing.F) {
	fuzz(f, "x.md", []byte("# a\n\n- *b* [c](d)\n\n|a|b|\n|-|-|\n|1|2|\n```\nx\n```"))
}
func FuzzHTML(f *testing.F) {
	fuzz(f, "x.html", []byte("<html><nav>a</nav><table><tr><th>b<td>c</table><li><pre>d"))
}
func FuzzCSV(f *testing.F)  { fuzz(f, "x.csv", []byte("a,b\n\"c\"\"d\",e")) }
func FuzzJSON(f *testing.F) { fuzz(f, "x.json", []byte(`{"a":[1,{"b":null}]}`)) }
func FuzzDocx(f *testing.F) {
	fuzzPart(f, "x.docx", func(body []byte) []byte { return docxOf(string(body)) }, []byte("<w:p><w:r><w:t>a</w:t></w:r></w:p>"),
		[]byte(`<w:p><w:pPr><w:pStyle w:val="H1"/><w:numPr><w:ilvl w:val="1"/></w:numPr></w:pPr></w:p><w:tbl><w:tr><w:tc><w:p><w:r><w:t>b</w:t><w:br/></w:r></w:p></w:tc></w:tr></w:tbl>`))
}
func FuzzPptx(f *testing.F) {
	fuzzPart(f, "x.pptx", func(slide []byte) []byte { return pptxWith(string(slide)) }, []byte(slideOf(shapeOf("body", "point")+shapeOf("title", "Plan"))))
}
func FuzzXlsx(f *testing.F) {
	fuzzPart(f, "x.xlsx", func(rows []byte) []byte { return xlsxOf(string(rows)) }, []byte("<row><c><v>1</v></c></row>"),
		[]byte(`<row r="1"><c r="A1" t="s"><v>0</v></c><c r="ZZ1" t="inlineStr"><is><t>a</t></is></c><c r="C1" s="1"><v>45000.5</v></c><c t="b"><v>1</v></c></row>`))
}

// FuzzFormat: any code of a workbook's number format shows any number.
func FuzzFormat(f *testing.F) {
	f.Add(`[$-409]d. mmmm yyyy h:mm AM/PM;[h]:mm:ss.00;"x"0.00E+00,,%`, 45000.25, 0.0)
	f.Add(`#,##0.00_);[Red]\(#,##0.00\);* 0?/?;@`, -1e300, 1462.0)
	f.Fuzz(func(t *testing.T, code string, n, since float64) {
		if text := parseFormat(code).show(n, since); len(text) > 10*longestFormat {
			t.Fatalf("%d bytes", len(text))
		}
	})
}

// FuzzPDF begins with files of each kind: encrypted in each way, with a table and with a stream of references, with
// objects inside of streams.
func FuzzPDF(f *testing.F) {
	seeds := [][]byte{pdfOf("Hello", "b"), packing{}.pdf(), packing{compressed: true}.pdf()}
	names, err := filepath.Glob("testdata/pdf/*.pdf")
	if err != nil || len(names) == 0 {
		f.Fatal(err, len(names))
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, data)
	}
	fuzz(f, "x.pdf", seeds...)
}

// packing is how the objects of a PDF are inside of a stream, and its references in another one.
type packing struct {
	compressed bool   // the references with a prediction
	first      int    // where the objects begin in their stream; 0: where they do
	index      uint32 // is added to the places of the objects in their stream
}

func (k packing) pdf() []byte {
	var b bytes.Buffer
	b.WriteString("%PDF-1.5\n")
	offsets := map[int]int{}
	object := func(num int, dict string, data []byte) {
		offsets[num] = b.Len()
		fmt.Fprintf(&b, "%d 0 obj\n<<%s/Length %d>>\nstream\n%s\nendstream\nendobj\n", num, dict, len(data), data)
	}
	var heads, bodies strings.Builder
	for i, body := range []string{onePage[0], onePage[1], plainFont, onePage[2]} {
		fmt.Fprintf(&heads, "%d %d ", i+1, bodies.Len())
		bodies.WriteString(body + " ")
	}
	object(5, "", []byte("BT /F 12 Tf 72 700 Td (text) Tj ET"))
	packed, dict := []byte(heads.String()+bodies.String()), fmt.Sprintf("/Type/ObjStm/N 4/First %d", cmp.Or(k.first, heads.Len()))
	if k.compressed {
		packed, dict = deflated(packed), dict+"/Filter/FlateDecode"
	}
	object(6, dict, packed)
	rows := [][]byte{make([]byte, 7)}
	row := func(kind byte, at int, index uint32) {
		rows = append(rows, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{kind}, uint16(at)), index))
	}
	for i := range uint32(4) {
		row(2, 6, i+k.index)
	}
	for _, at := range []int{offsets[5], offsets[6], b.Len()} {
		row(1, at, 0)
	}
	table, dict := bytes.Join(rows, nil), "/Type/XRef/Size 8/W[1 2 4]/Root 1 0 R"
	if k.compressed {
		table = nil
		for i, row := range rows { // as the difference to the row above
			table = append(table, 2)
			for j, c := range row {
				if i > 0 {
					c -= rows[i-1][j]
				}
				table = append(table, c)
			}
		}
		table, dict = deflated(table), dict+"/Filter/FlateDecode/DecodeParms<</Predictor 12/Columns 7>>"
	}
	object(7, dict, table)
	fmt.Fprintf(&b, "startxref\n%d\n%%%%EOF\n", offsets[7])
	return b.Bytes()
}

const plainFont = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"

func deflated(data []byte) []byte {
	var b bytes.Buffer
	return closed(&b, zlib.NewWriter(&b), data)
}

// closed returns what a compressor wrote into b.
func closed(b *bytes.Buffer, z io.WriteCloser, data []byte) []byte {
	_, err := z.Write(data)
	if err := errors.Join(err, z.Close()); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// FuzzPDFFont: any font with any map of codes gives any content a text.
func FuzzPDFFont(f *testing.F) {
	const (
		simple    = "<</Type/Font/Subtype/TrueType/BaseFont/ABCDEF+Own/FirstChar 1/LastChar 2/Widths[500 500]/ToUnicode 6 0 R/Encoding<</Differences[1/R/odieresis/d/uni03A9/f_f_i]>>>>"
		composite = "<</Type/Font/Subtype/Type0/BaseFont/Own/Encoding/Identity-H/ToUnicode 6 0 R/DescendantFonts[<</Type/Font/Subtype/CIDFontType2/BaseFont/Own/DW 500/W[1[500 600]4 9 700]>>]>>"
		own       = "<</Type/Font/Subtype/Type3/FontMatrix[.001 0 0 .001 0 0]/Encoding 6 0 R/ToUnicode 6 0 R>>"
	)
	f.Add(simple, "<010203>", "1 begincodespacerange <00> <FF> endcodespacerange 2 beginbfchar <01> <0052> <02> <006600660069> endbfchar")
	f.Add(composite, "[<00010002> -500 <0003>] TJ 1 0 0 1 5 5 Tm (a)", "1 begincodespacerange <0000> <FFFF> endcodespacerange 2 beginbfrange <0001> <0002> <D834DD1E> <0003> <0004> [<0078> <00DF>] endbfrange")
	f.Add(own, "/Span<</ActualText(b)>>BDC (a) Tj EMC BI /W 1 ID x EI T* (c) '", "2 begincodespacerange <00> <80> <8140> <FEFE> endcodespacerange")
	f.Add(plainFont, "(a) Tj /F 9 Tf 2 Tr 90 Tz 0 -20 TD q 1 0 0 1 5 5 cm (b) Tj Q (c)", "")
	f.Fuzz(func(t *testing.T, font, content, codes string) {
		readFuzzed(t, "x.pdf", pdfWith(font, content, streamOf(codes)))
	})
}

// FuzzPDFStream: any stream is a content, whatever its filters.
func FuzzPDFStream(f *testing.F) {
	const content = "BT /F 12 Tf 72 700 Td (text) Tj ET"
	var b bytes.Buffer
	f.Add("/Filter/ASCIIHexDecode", []byte(hex.EncodeToString([]byte(content))+">"))
	f.Add("/Filter[/A85]", []byte("6<#'\\7PQ#@1a#b~>"))
	f.Add("/Filter/RunLengthDecode", append([]byte{byte(len(content) - 1)}, content+"\x80"...))
	f.Add("/Filter[/LZWDecode]/DecodeParms[<</EarlyChange 0>>]", closed(&b, lzw.NewWriter(&b, lzw.MSB, 8), []byte(content)))
	f.Add("/Filter/FlateDecode/DecodeParms<</Predictor 2/Colors 3>>", deflated([]byte(content)))
	for _, kind := range "\x00\x01\x02\x03\x04" {
		f.Add("/Filter/Fl/DecodeParms<</Predictor 15/Columns 40>>", deflated([]byte(string(kind)+content+strings.Repeat(" ", 40-len(content)))))
	}
	f.Fuzz(func(t *testing.T, dict string, data []byte) {
		readFuzzed(t, "x.pdf", pdfFrom(onePage[0], onePage[1], plainFont, onePage[2], fmt.Sprintf("<</Length %d%s>>\nstream\n%s\nendstream", len(data), dict, data)))
	})
}

// Objects inside of a stream are read, also where the references give them wrong places there.
func TestPackedPDFs(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]packing{"plain": {}, "compressed": {compressed: true}, "places too far": {index: 1000}, "places below the first one": {index: 1 << 31}} {
		expect(t, name, k.pdf(), typePDF, "", "paragraph p1: text")
	}
	data := packing{first: math.MaxInt - 10}.pdf()
	readFuzzed(t, "x.pdf", data)
	expectFault(t, "objects beyond all bounds", data, Limits{}, "the PDF is damaged")
}

// FuzzRead makes any file, whose name is a hint of its kind.
func FuzzRead(f *testing.F) {
	for name, content := range map[string][]byte{"a.txt": []byte("text"), "a.md": []byte("# a\n\n*b* | c"), "a.html": []byte("<html><p>a<table><tr><td>b"), "a.csv": []byte("a,b\n\"1\"\"\",2\n"),
		"a.json": []byte(`{"a":[1,"b",null]}`), "a.docx": docxOf("<w:p><w:r><w:t>a</w:t></w:r></w:p>"), "a.pptx": pptxOf(), "a.xlsx": xlsxOf("<row><c><v>1</v></c></row>"), "a.pdf": pdfOf("a", "b")} {
		f.Add(name, content)
	}
	f.Fuzz(func(t *testing.T, name string, content []byte) { readFuzzed(t, name, content) })
}
