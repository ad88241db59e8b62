package read_test

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf16"

	"agentsvc/schemas/document"
	"agentsvc/schemas/document/read"
)

// text reads a file and returns its blocks, one line each: kind, page and text.
func text(t testing.TB, name string, content []byte) (string, read.Meta, error) {
	t.Helper()
	var lines []string
	meta, err := read.Read(bytes.NewReader(content), int64(len(content)), name, "", read.Limits{}, func(b document.Block) error {
		line := b.Kind.String() + " "
		if b.Page > 0 {
			line += fmt.Sprintf("p%d ", b.Page)
		}
		if b.Header != "" {
			line += "[" + b.Header + "] "
		}
		lines = append(lines, line+b.Text)
		return nil
	})
	return strings.Join(lines, "\n"), meta, err
}

// member is a part of an archive.
type member struct{ name, content string }

func archive(members ...member) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.Create(m.name)
		if err != nil {
			panic(err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			panic(err)
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

const head = `<?xml version="1.0" encoding="UTF-8"?>`

func docx(body string, more ...member) []byte {
	return archive(append([]member{
		{"[Content_Types].xml", head + `<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="xml" ContentType="application/xml"/><Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>`},
		{"_rels/.rels", head + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>`},
		{"word/styles.xml", head + `<w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style></w:styles>`},
		{"word/document.xml", head + `<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>` + body + `</w:body></w:document>`},
	}, more...)...)
}

func paragraph(style, text string) string {
	if style != "" {
		style = `<w:pPr><w:pStyle w:val="` + style + `"/></w:pPr>`
	}
	return `<w:p>` + style + `<w:r><w:t>` + text + `</w:t></w:r></w:p>`
}

func pptx(slides ...string) []byte {
	var ids, rels string
	var parts []member
	for i, s := range slides {
		ids += fmt.Sprintf(`<p:sldId id="%d" r:id="r%d"/>`, 256+i, i)
		// The order of slides is that of the list, not that of their names.
		name := fmt.Sprintf("slides/slide%d.xml", len(slides)-i)
		rels += fmt.Sprintf(`<Relationship Id="r%d" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/slide" Target="%s"/>`, i, name)
		parts = append(parts, member{"ppt/" + name, head + `<p:sld xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><p:cSld><p:spTree>` + s + `</p:spTree></p:cSld></p:sld>`})
	}
	return archive(append([]member{
		{"[Content_Types].xml", head + `<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/ppt/presentation.xml" ContentType="application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml"/></Types>`},
		{"_rels/.rels", head + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="ppt/presentation.xml"/></Relationships>`},
		{"ppt/presentation.xml", head + `<p:presentation xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><p:sldIdLst>` + ids + `</p:sldIdLst></p:presentation>`},
		{"ppt/_rels/presentation.xml.rels", head + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">` + rels + `</Relationships>`},
	}, parts...)...)
}

func shape(text string) string {
	return `<p:sp><p:txBody><a:p><a:r><a:t>` + text + `</a:t></a:r></a:p></p:txBody></p:sp>`
}

func xlsx(sheets ...string) []byte {
	var list, rels string
	var parts []member
	for i, s := range sheets {
		list += fmt.Sprintf(`<sheet name="Sheet%d" sheetId="%d" r:id="r%d"/>`, i+1, i+1, i+1)
		rels += fmt.Sprintf(`<Relationship Id="r%d" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet%d.xml"/>`, i+1, i+1)
		parts = append(parts, member{fmt.Sprintf("xl/worksheets/sheet%d.xml", i+1), head + `<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>` + s + `</sheetData></worksheet>`})
	}
	rels += `<Relationship Id="shared" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings" Target="sharedStrings.xml"/>`
	return archive(append([]member{
		{"[Content_Types].xml", head + `<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/></Types>`},
		{"_rels/.rels", head + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/></Relationships>`},
		{"xl/workbook.xml", head + `<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>` + list + `</sheets></workbook>`},
		{"xl/_rels/workbook.xml.rels", head + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">` + rels + `</Relationships>`},
		{"xl/sharedStrings.xml", head + `<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><si><t>Article</t></si><si><t>Price</t></si><si><t>Desk</t></si></sst>`},
	}, parts...)...)
}

// pdf returns a file with a page for each text, in Helvetica, with a cross-reference table.
func pdf(pages ...string) []byte {
	var b bytes.Buffer
	var at []int
	object := func(body string) int {
		at = append(at, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", len(at), body)
		return len(at)
	}
	b.WriteString("%PDF-1.4\n")
	font := object("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>")
	tree := font + 1 + 2*len(pages)
	var kids string
	for _, p := range pages {
		var packed bytes.Buffer
		w, _ := flate.NewWriter(&packed, 9)
		fmt.Fprintf(w, "BT /F1 12 Tf 72 700 Td (%s) Tj ET", p)
		w.Close()
		stream := append([]byte{0x78, 0x9c}, packed.Bytes()...) // without a checksum, as some writers leave it
		content := object(fmt.Sprintf("<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream", len(stream), stream))
		kids += fmt.Sprintf("%d 0 R ", object(fmt.Sprintf("<< /Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] /Contents %d 0 R /Resources << /Font << /F1 %d 0 R >> >> >>", tree, content, font)))
	}
	object(fmt.Sprintf("<< /Type /Pages /Kids [%s] /Count %d >>", kids, len(pages)))
	root := object(fmt.Sprintf("<< /Type /Catalog /Pages %d 0 R >>", tree))
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(at)+1)
	for _, o := range at {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer\n<< /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(at)+1, root, start)
	return b.Bytes()
}

func utf16le(s string) []byte {
	b := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return b
}

// Each kind of file, read as a person reads it.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		content []byte
		media   string
		want    string
	}{
		{"a.txt", []byte("One line.\n\nAnother one."), "text/plain", "paragraph One line.\nparagraph Another one."},
		{"latin.txt", []byte("R\xfcckgabe m\xf6glich"), "text/plain", "paragraph Rückgabe möglich"},
		{"wide.txt", utf16le("Rückgabe"), "text/plain", "paragraph Rückgabe"},
		{"bom.txt", []byte("\xef\xbb\xbftext"), "text/plain", "paragraph text"},
		{"a.md", []byte("# Title\n\nSome **bold** and [a link](https://x.example).\n\n- one\n- two\n\n| A | B |\n|---|---|\n| 1 | 2 |\n"), "text/markdown",
			"heading Title\nparagraph Some bold and a link (https://x.example).\nlist one\nlist two\nrow [A\tB] 1\t2"},
		{"a.html", []byte("<html><head><title>T</title><script>evil()</script><style>p{}</style></head><body><h1>Head</h1><p>Text &amp; more</p><ul><li>one</li></ul><table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table></body></html>"),
			"text/html", "heading T\nheading Head\nparagraph Text & more\nlist one\nrow [A\tB] 1\t2"},
		{"a.csv", []byte("name;price\nDesk;80\nLamp;12\n"), "text/csv", "row [name\tprice] Desk\t80\nrow [name\tprice] Lamp\t12"},
		{"a.docx", docx(paragraph("Heading1", "Title") + paragraph("", "Body") + `<w:tbl><w:tr><w:tc>` + paragraph("", "A") + `</w:tc></w:tr><w:tr><w:tc>` + paragraph("", "1") + `</w:tc></w:tr></w:tbl>`),
			"application/vnd.openxmlformats-officedocument.wordprocessingml.document", "heading Title\nparagraph Body\nrow [A] 1"},
		{"a.pptx", pptx(shape("First"), shape("Second")), "application/vnd.openxmlformats-officedocument.presentationml.presentation", "heading p1 Slide 1\nparagraph p1 First\nheading p2 Slide 2\nparagraph p2 Second"},
		{"a.xlsx", xlsx(`<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row><row r="2"><c r="A2" t="s"><v>2</v></c><c r="B2"><v>80</v></c></row>`),
			"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "heading Sheet1\nrow [Article\tPrice] Desk\t80"},
		{"a.pdf", pdf("First page", "Second page"), "application/pdf", "paragraph p1 First page\nparagraph p2 Second page"},
		// The content decides, whatever the name says.
		{"mislabelled.txt", pdf("A page"), "application/pdf", "paragraph p1 A page"},
	} {
		got, meta, err := text(t, c.name, c.content)
		if err != nil || got != c.want || meta.MediaType != c.media {
			t.Errorf("%s: %v, %s\n%s\nwant\n%s", c.name, err, meta.MediaType, got, c.want)
		}
	}
	got, _, err := text(t, "a.json", []byte(`{"order":{"id":"ORD-1","lines":[{"article":"Desk"}]}}`))
	if err != nil || !strings.Contains(got, "ORD-1") || !strings.Contains(got, "Desk") || !strings.Contains(got, "article") {
		t.Errorf("json: %v\n%s", err, got)
	}
}

// Files that cannot be read say why in plain words, at a bounded cost.
func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	bomb := func() []byte { // 300 MiB of blanks
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, m := range []member{{"[Content_Types].xml", head + `<Types/>`}, {"_rels/.rels", head + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>`}} {
			w, _ := z.Create(m.name)
			io.WriteString(w, m.content)
		}
		w, _ := z.Create("word/document.xml")
		io.WriteString(w, head+`<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>`)
		line := []byte(strings.Repeat(paragraph("", strings.Repeat("x", 1000)), 1000))
		for range 300 {
			w.Write(line)
		}
		z.Close()
		return b.Bytes()
	}
	for _, c := range []struct {
		name    string
		content []byte
		want    string // a part of the reason
	}{
		{"empty", nil, "empty"},
		{"blank", []byte(" \n\t\n"), "no text"},
		{"picture.png", []byte("\x89PNG\r\n\x1a\n0000"), "a picture"},
		{"program", []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00"), "cannot be read"},
		{"truncated.docx", docx(paragraph("", "text"))[:200], "damaged"},
		{"truncated.pdf", pdf("text")[:60], ""},
		{"entities.docx", docx(`]]><!DOCTYPE x [<!ENTITY a "b">]>&a;`), "damaged"},
		{"doctype.docx", archive(member{"[Content_Types].xml", head + `<Types/>`}, member{"_rels/.rels", head + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>`},
			member{"word/document.xml", `<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>&b;</w:t></w:r></w:p></w:body></w:document>`}), "document type declaration"},
		{"bomb.docx", bomb(), "MiB"},
		{"nested.docx", docx(strings.Repeat("<w:p>", 100_000)), "nested"},
		{"sheets.xlsx", xlsx(make([]string, 1500)...), "more than 1000 sheets"},
		{"nested.json", []byte(strings.Repeat("[", 100_000)), "nested"},
		{"cut.json", []byte(`{"a": [1, 2`), "cut off"},
		{"plain.zip", archive(member{"../../etc/passwd", "root"}), "cannot be read"},
	} {
		_, _, err := text(t, c.name, c.content)
		if f := new(document.Fault); !errors.As(err, &f) || !strings.Contains(f.Reason, c.want) || strings.HasSuffix(f.Reason, ".") {
			t.Errorf("%s: %v, want a fault with %q", c.name, err, c.want)
		}
	}
}

// A PDF whose pages and objects refer to each other in circles ends.
func TestAPDFWithLoops(t *testing.T) {
	t.Parallel()
	whole := pdf("text", "more")
	for _, c := range [][2]string{
		{"/Parent 6 0 R", "/Parent 3 0 R"},
		{"/Kids [3 0 R 5 0 R ]", "/Kids [6 0 R 6 0 R ]"},
		{"/Contents 2 0 R", "/Contents 3 0 R"},
		{"/Pages 6 0 R", "/Pages 7 0 R"},
		{"/Font << /F1 1 0 R >>", "/Font << /F1 3 0 R >>"},
	} {
		changed := bytes.Replace(whole, []byte(c[0]), []byte(c[1]), 1)
		if bytes.Equal(changed, whole) {
			t.Fatalf("%s is not in the file", c[0])
		}
		if _, _, err := text(t, "a.pdf", changed); err != nil && !errors.As(err, new(*document.Fault)) {
			t.Errorf("%s: %v", c[1], err)
		}
	}
}

// An error of the sink ends the reading and is returned as it is.
func TestTheSinkEndsIt(t *testing.T) {
	t.Parallel()
	stop := errors.New("enough")
	for name, content := range map[string][]byte{"a.txt": []byte("text"), "a.md": []byte("# a\n\nb"), "a.html": []byte("<html><p>a</p>"), "a.csv": []byte("a,b\n1,2\n"),
		"a.json": []byte(`{"a":1}`), "a.docx": docx(paragraph("", "a")), "a.pptx": pptx(shape("a")), "a.xlsx": xlsx(`<row r="1"><c r="A1"><v>1</v></c></row>`), "a.pdf": pdf("a")} {
		_, err := read.Read(bytes.NewReader(content), int64(len(content)), name, "", read.Limits{}, func(document.Block) error { return stop })
		if err != stop {
			t.Errorf("%s: %v", name, err)
		}
	}
}
