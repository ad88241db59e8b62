package read

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentsvc/schemas/document"
)

// blocks reads a file and writes its blocks, a line each.
func blocks(t testing.TB, name string, data []byte, lim Limits) (Meta, []string, error) {
	t.Helper()
	var out []string
	meta, err := Read(bytes.NewReader(data), int64(len(data)), name, "", lim, func(b document.Block) error {
		kind := b.Kind.String()
		if b.Level > 0 {
			kind = fmt.Sprint(kind, b.Level)
		}
		if b.Page > 0 {
			kind = fmt.Sprint(kind, " p", b.Page)
		}
		if b.Continues {
			kind += "+"
		}
		if b.Header != "" {
			kind += " [" + b.Header + "]"
		}
		out = append(out, kind+": "+b.Text)
		return nil
	})
	return meta, out, err
}

func expect(t *testing.T, name string, data []byte, mediaType, title string, want ...string) {
	t.Helper()
	meta, got, err := blocks(t, name, data, Limits{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if meta.MediaType != mediaType || meta.Title != title {
		t.Errorf("%s is %q with the title %q, want %q and %q", name, meta.MediaType, meta.Title, mediaType, title)
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("%s:\n%s\n\nwant\n%s", name, g, w)
	}
}

func expectFault(t *testing.T, name string, data []byte, lim Limits, want string) {
	t.Helper()
	_, _, err := blocks(t, name, data, lim)
	var f *document.Fault
	if !errors.As(err, &f) || f.Reason != want {
		t.Errorf("%s: %v, want the fault %q", name, err, want)
	}
}

// zipped makes an archive of names and contents, in pairs.
func zipped(pairs ...string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		w, err := z.Create(pairs[i])
		if err == nil {
			_, err = w.Write([]byte(pairs[i+1]))
		}
		if err != nil {
			panic(err)
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

const (
	w = ` xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"`
	r = ` xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"`
	a = ` xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"`
)

func docxOf(body string) []byte {
	return zipped("word/document.xml", `<w:document`+w+`><w:body>`+body+`</w:body></w:document>`,
		"word/styles.xml", `<w:styles`+w+`><w:style w:styleId="H1"><w:name w:val="heading 1"/></w:style><w:style w:styleId="Own"><w:name w:val="Own"/><w:basedOn w:val="H1"/></w:style></w:styles>`,
		"word/footnotes.xml", `<w:footnotes`+w+`><w:footnote><w:p><w:r><w:t>A note.</w:t></w:r></w:p></w:footnote></w:footnotes>`)
}

func TestDocx(t *testing.T) {
	t.Parallel()
	cell := func(s string) string { return `<w:tc><w:p><w:r><w:t>` + s + `</w:t></w:r></w:p></w:tc>` }
	expect(t, "x.bin", docxOf(`<w:p><w:pPr><w:pStyle w:val="H1"/></w:pPr><w:r><w:t>Report</w:t></w:r></w:p>`+
		`<w:p><w:r><w:t>First </w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:t>part.</w:t><w:br/><w:t>Line.</w:t></w:r></w:p>`+
		`<w:p><w:pPr><w:pStyle w:val="Own"/></w:pPr><w:r><w:t>Second</w:t></w:r></w:p>`+
		`<w:p><w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="3"/></w:numPr></w:pPr><w:r><w:t>point</w:t></w:r></w:p>`+
		`<w:tbl><w:tr>`+cell("Name")+cell("City")+`</w:tr><w:tr>`+cell("Ann")+cell("Oslo")+`</w:tr></w:tbl>`),
		typeDocx, "Report", "heading1: Report", "paragraph: First part.\nLine.", "heading1: Second", "list2: point", "row [Name\tCity]: Ann\tOslo", "paragraph: A note.")
}

func pptxOf() []byte {
	return pptxWith(slideOf(shapeOf("body", "point") + shapeOf("title", "Plan") + shapeOf("sldNum", "1")))
}

func shapeOf(ph, text string) string {
	return `<p:sp><p:nvSpPr><p:nvPr><p:ph type="` + ph + `"/></p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>` + text + `</a:t></a:r></a:p></p:txBody></p:sp>`
}

func slideOf(shapes string) string {
	return `<p:sld` + a + `><p:cSld><p:spTree>` + shapes + `</p:spTree></p:cSld></p:sld>`
}

// pptxWith returns a presentation of two slides, of which the first one is given.
func pptxWith(first string) []byte {
	return zipped("ppt/presentation.xml", `<p:presentation`+a+r+`><p:sldIdLst><p:sldId id="256" r:id="rId2"/><p:sldId id="257" r:id="rId1"/></p:sldIdLst></p:presentation>`,
		"ppt/_rels/presentation.xml.rels", `<Relationships><Relationship Id="rId1" Type="x/slide" Target="slides/slide1.xml"/><Relationship Id="rId2" Type="x/slide" Target="/ppt/slides/slide2.xml"/></Relationships>`,
		"ppt/slides/slide1.xml", slideOf(shapeOf("body", "last")),
		"ppt/slides/slide2.xml", first,
		"ppt/slides/_rels/slide2.xml.rels", `<Relationships><Relationship Id="rId9" Type="x/notesSlide" Target="../notesSlides/n.xml"/></Relationships>`,
		"ppt/notesSlides/n.xml", slideOf(shapeOf("body", "Say hello.")))
}

func TestPptx(t *testing.T) {
	t.Parallel()
	expect(t, "x.pptx", pptxOf(), typePptx, "Plan", "heading1 p1: Plan", "list1 p1: point", "paragraph p1: Say hello.", "heading1 p2: Slide 2", "list1 p2: last")
}

func xlsxOf(rows string, sheets ...string) []byte {
	list := `<sheet name="Data" sheetId="1" r:id="rId1"/>` + strings.Join(sheets, "")
	return zipped("xl/workbook.xml", `<workbook`+r+`><sheets>`+list+`</sheets></workbook>`,
		"xl/_rels/workbook.xml.rels", `<Relationships><Relationship Id="rId1" Type="x/worksheet" Target="worksheets/sheet1.xml"/><Relationship Id="rId2" Type="x/sharedStrings" Target="sharedStrings.xml"/><Relationship Id="rId3" Type="x/styles" Target="styles.xml"/></Relationships>`,
		"xl/sharedStrings.xml", `<sst><si><t>Name</t></si><si><r><t>Da</t></r><r><t>te</t></r></si></sst>`,
		"xl/styles.xml", `<styleSheet><numFmts><numFmt numFmtId="164" formatCode="#,##0.00 [$€-407]"/></numFmts><cellStyleXfs><xf numFmtId="9"/></cellStyleXfs><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="9"/></cellXfs></styleSheet>`,
		"xl/worksheets/sheet1.xml", `<worksheet><sheetData>`+rows+`</sheetData></worksheet>`)
}

func TestXlsx(t *testing.T) {
	t.Parallel()
	expect(t, "x.xlsx", xlsxOf(`<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c><c r="D1" t="inlineStr"><is><t>Sum</t></is></c></row>`+
		`<row r="2"><c r="A2" t="str"><f>A1</f><v>Ann</v></c><c r="B2" s="1"><v>45000</v></c><c r="C2" t="b"><v>1</v></c><c r="D2" s="2"><v>1234.5</v></c><c r="E2" s="3"><v>0.25</v></c><c r="F2"><v>0.30000000000000004</v></c></row>`,
		`<sheet name="Secret" sheetId="2" state="hidden" r:id="rId1"/>`),
		typeXlsx, "", "heading1: Data", "row [Name\tDate\t\tSum]: Ann\t2023-03-15\tTRUE\t1,234.50 €\t25%\t0.3")
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code string
		n    float64
		want string
	}{
		{"General", 1e6, "1000000"}, {"0.00", 2.005, "2.01"}, {"#,##0", -1234567, "-1,234,567"}, {"0.0%", 0.1234, "12.3%"}, {`"Nr. "000`, 7, "Nr. 007"},
		{"#,##0.00;[Red](#,##0.00)", -5, "(5.00)"}, {"0;-0;\"none\"", 0, "none"}, {"d. mmmm yyyy", 45000, "15. March 2023"}, {"h:mm AM/PM", 0.75, "6:00 PM"},
		{"[h]:mm:ss", 1.5, "36:00:00"}, {"yyyy-mm-dd hh:mm", 45000.5, "2023-03-15 12:00"}, {"0.00E+00", 12345, "1.23E+04"}, {"mm:ss.0", 0.0007, "01:00.5"}, {"#.##", 0.5, ".5"},
		{"@", 3, "3"}, {"0,", 5000, "5"}, {"# ?/?", 0.5, "0.5"},
	} {
		if got := parseFormat(test.code).show(test.n, 0); got != test.want {
			t.Errorf("%q of %v is %q, want %q", test.code, test.n, got, test.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	expect(t, "x.md", []byte("# The *Guide*\n\nSome **bold**, _slanted_, `code *here*`, ~~old~~ and snake_case_name, 2 * 3.\nA [link](https://x.y/z \"Tip\") and ![picture](a.png), [ref][r], <https://auto.link>, \\*no mark\\*.\n\n"+
		"Setext\n------\n\n- one\n  goes on\n  - two\n1. first\n- [x] done\n\n> a quote\n\n```go\nx := *p // # not a heading\n```\n\n| Name | City |\n|---|:-:|\n| **Ann** | Oslo |\n| Bob | a\\|b |\n\n[r]: https://ref.example\n\n***\n\n<b>end</b> &amp; more<!-- unseen -->\n"),
		typeMarkdown, "The Guide",
		"heading1: The Guide",
		"paragraph: Some bold, slanted, code *here*, old and snake_case_name, 2 * 3.\nA link (https://x.y/z, Tip) and picture (a.png), ref, https://auto.link, *no mark*.",
		"heading2: Setext", "list1: one\ngoes on", "list2: two", "list1: 1. first", "list1: ☑ done", "paragraph: a quote",
		"code: x := *p // # not a heading", "row [Name\tCity]: Ann\tOslo", "row [Name\tCity]: Bob\ta|b", "paragraph: r: https://ref.example", "paragraph: end & more")
}

func TestHTML(t *testing.T) {
	t.Parallel()
	expect(t, "x.txt", []byte(`<!DOCTYPE html><html><head><title>Help &amp; more</title><style>p{}</style><script>alert("x")</script></head><body>
<nav><ul><li>Home</li></ul></nav><h1>Help &amp; more</h1><p>First <b>bold</b>
 text.<br>Line.</p><div hidden>unseen</div><ul><li>one<ol><li>deep</li></ol></li></ul><pre>a
  b</pre><table><tr><th>Name</th><th>City</th></tr><tr><td>Ann</td><td>Os<i>lo</i></td></tr></table><img alt="A chart"><p>End</body></html>`),
		typeHTML, "Help & more", "heading1: Help & more", "paragraph: First bold text.\nLine.", "list1: one", "list2: 1. deep", "code: a\n  b", "row [Name\tCity]: Ann\tOslo", "paragraph: A chart", "paragraph: End")
	// Navigation that is never closed hides nothing.
	_, got, err := blocks(t, "x.html", []byte("<html><body><nav>menu<p>All the text"), Limits{})
	if err != nil || !strings.Contains(strings.Join(got, "\n"), "All the text") {
		t.Error(got, err)
	}
}

func TestCSVAndJSON(t *testing.T) {
	t.Parallel()
	expect(t, "x.csv", []byte("Name;Note\r\nAnn;\"a; \"\"b\"\"\nc\"\r\nBob;\r\n"), typeCSV, "", "row [Name\tNote]: Ann\ta; \"b\" c", "row [Name\tNote]: Bob")
	expect(t, "data", []byte(`{"title":"T","items":[{"name":"Ann","tags":["x","y"],"n":1.50},{"name":"Bob","ok":true,"none":null}]}`), typeJSON, "",
		"paragraph: title: T\nitems.name: Ann\nitems.tags: x, y\nitems.n: 1.50", "paragraph: items.name: Bob\nitems.ok: true\nitems.none: null")
	expect(t, "x.json", []byte(`{"cut": "of`), typeText, "", `paragraph: {"cut": "of`)
}

// A long key is whole in its first line and cut in the others, so that a small file does not become a large text.
func TestLongKeysInJSON(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 101) // 202 bytes
	short := strings.Repeat("é", 100) + "…"
	expect(t, "x.json", []byte(`{"`+long+`":{"a":1,"b":[2,3],"`+long+`":4},"`+long+`x":[5,6,7]}`), typeJSON, "",
		"paragraph: "+long+".a: 1\n"+short+".b: 2, 3\n"+short+"."+long+": 4", "paragraph: "+long+"x: 5\n"+short+": 6, 7")
	key := strings.Repeat("k", 100_000)
	file := []byte(`{"` + key + `":[` + strings.Repeat(`1,{"a":2},`, 1000) + `3]}`)
	size := 0
	if _, err := Read(bytes.NewReader(file), int64(len(file)), "x.json", "", Limits{}, func(b document.Block) error { size += len(b.Text); return nil }); err != nil || size > 600_000 || size < 100_000 {
		t.Errorf("%d bytes become %d of text, %v", len(file), size, err)
	}
}

func TestTextInAllEncodings(t *testing.T) {
	t.Parallel()
	utf16 := func(bom, big bool) []byte {
		var b []byte
		put := func(c rune) {
			if big {
				b = append(b, byte(c>>8), byte(c))
			} else {
				b = append(b, byte(c), byte(c>>8))
			}
		}
		if bom {
			put(0xfeff)
		}
		for _, c := range "Grüße\n\nzwei Zeilen" {
			put(c)
		}
		return b
	}
	for name, data := range map[string][]byte{
		"utf8": []byte("Grüße\n\nzwei Zeilen"), "bom": []byte("\xef\xbb\xbfGrüße\n\nzwei Zeilen"), "latin1": []byte("Gr\xfc\xdfe\r\n\r\nzwei Zeilen"),
		"le": utf16(true, false), "be": utf16(true, true), "le without a mark": utf16(false, false), "be without a mark": utf16(false, true),
	} {
		expect(t, name, data, typeText, "", "paragraph: Grüße", "paragraph: zwei Zeilen")
	}
	expect(t, "x.html", []byte("<html><meta charset=shift_jis><p>\x93\xfa\x96{"), typeHTML, "", "paragraph: 日本")
}

// A long line comes in pieces that lose nothing.
func TestLongLines(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"x.txt", "x.md"} {
		text := strings.Repeat("word ", 100_000) + strings.Repeat("ü", 100_000)
		var got strings.Builder
		if _, err := Read(strings.NewReader(text), int64(len(text)), name, "", Limits{}, func(b document.Block) error { got.WriteString(b.Text); return nil }); err != nil || got.String() != text {
			t.Error(name, err, got.Len(), len(text))
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	small := Limits{ExpandedBytes: 1 << 20, Sheets: 100}
	expectFault(t, "empty", nil, Limits{}, "the file is empty")
	expectFault(t, "x.md", []byte(" \n\n"), Limits{}, "the file holds no text")
	expectFault(t, "x.txt", []byte("\x7fELF\x02\x01\x01\x00\x00\x00"), Limits{}, "files of this kind cannot be read: a program")
	expectFault(t, "x.txt", []byte("\x00\x01\x02\x03\x04\x05\x06\x07\x00"), Limits{}, "files of this kind cannot be read: it is neither text nor a document of a known kind")
	expectFault(t, "x.docx", zipped("../../etc/passwd", "x"), Limits{}, "files of this kind cannot be read: a ZIP archive")
	expectFault(t, "bomb", docxOf("<w:p><w:r><w:t>"+strings.Repeat(" ", 2<<20)+"</w:t></w:r></w:p>"), small, "the archive expands to more than 1 MiB")
	expectFault(t, "entities", zipped("word/document.xml", `<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><w:document`+w+`>&c;</w:document>`), Limits{}, "the document holds a document type declaration, which is not allowed")
	expectFault(t, "deep", docxOf(strings.Repeat("<w:x>", 3000)), Limits{}, "the document is nested more than 2000 deep")
	expectFault(t, "cut", docxOf("<w:p><w:r><w:t>a")[:300], Limits{}, "the archive is damaged")
	expectFault(t, "sheets", xlsxOf("", strings.Repeat(`<sheet name="x" r:id="rId1"/>`, 10_000)), small, "the workbook has more than 100 sheets")
	expectFault(t, "deep.json", []byte(strings.Repeat("[", 2000)), Limits{}, "the JSON is nested more than 1000 deep")
	expectFault(t, "x.pdf", []byte("%PDF-1.4\nnothing"), Limits{}, "the PDF is damaged")
	expectFault(t, "x.doc", append([]byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), []byte("E\x00n\x00c\x00r\x00y\x00p\x00t\x00e\x00d\x00P\x00a\x00c\x00k\x00a\x00g\x00e\x00")...), Limits{}, "the file is protected by a password")
}

func TestErrorsOfTheSinkComeBack(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	for name, data := range map[string][]byte{"x.txt": []byte("text"), "x.md": []byte("# text"), "x.html": []byte("<html>text"), "x.csv": []byte("a,b\n1,2"), "x.json": []byte(`{"a":1}`), "x.docx": docxOf(""), "x.pptx": pptxOf(), "x.xlsx": xlsxOf("<row><c><v>1</v></c></row>"), "x.pdf": pdfOf("text")} {
		_, err := Read(bytes.NewReader(data), int64(len(data)), name, "", Limits{}, func(document.Block) error { return full })
		if !errors.Is(err, full) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// pdfOf makes a PDF with a page for each text.
func pdfOf(pages ...string) []byte {
	var b bytes.Buffer
	offsets := []int{}
	object := func(body string) {
		offsets = append(offsets, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", len(offsets), body)
	}
	b.WriteString("%PDF-1.4\n")
	object("<</Type/Catalog/Pages 2 0 R>>")
	var kids strings.Builder
	for i := range pages {
		fmt.Fprintf(&kids, "%d 0 R ", 4+2*i)
	}
	object(fmt.Sprintf("<</Type/Pages/Count %d/Kids[%s]/Resources<</Font<</F 3 0 R>>>>>>", len(pages), kids.String()))
	object("<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
	for i, text := range pages {
		object(fmt.Sprintf("<</Type/Page/Parent 2 0 R/Contents %d 0 R>>", 5+2*i))
		content := "BT /F 12 Tf 72 700 Td (" + text + ") Tj ET"
		object(fmt.Sprintf("<</Length %d>>\nstream\n%s\nendstream", len(content), content))
	}
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(offsets)+1)
	for _, o := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(offsets)+1, start)
	return b.Bytes()
}

func TestPDF(t *testing.T) {
	t.Parallel()
	whole := pdfOf("Hello \\(w\\366rld\\)", "Second page")
	want := []string{"paragraph p1: Hello (wörld)", "paragraph p2: Second page"}
	expect(t, "x.pdf", whole, typePDF, "", want...)
	expect(t, "a table that is cut off", whole[:bytes.LastIndex(whole, []byte("xref\n0"))], typePDF, "", want...)
	expect(t, "a wrong table", bytes.Replace(whole, []byte("%PDF-1.4\n"), []byte("%PDF-1.4\n%  moved\n"), 1), typePDF, "", want...)
	expectFault(t, "three pages", pdfOf("a", "b", "c"), Limits{Pages: 2}, "the PDF has more than 2 pages")
	expectFault(t, "no text", pdfOf(""), Limits{}, "the file holds no text: its pages are pictures, a scan for example")
	expectFault(t, "a password", bytes.Replace(whole, []byte("/Root 1 0 R"), []byte("/Encrypt<</Filter/Other>>/Root 1 0 R"), 1), Limits{}, "the PDF is protected by a password")
	loop := bytes.Replace(whole, []byte("/Type/Page/Parent"), []byte("/Kids[2 0 R]/Parent"), 1)
	if _, _, err := blocks(t, "a loop", loop, Limits{}); err != nil {
		t.Error(err)
	}
}
