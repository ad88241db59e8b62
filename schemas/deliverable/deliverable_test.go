package deliverable

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/xuri/excelize/v2"
	"golang.org/x/net/html"
)

var at = time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC)

func render(t testing.TB, kind Kind, text string) *File {
	t.Helper()
	f, err := Render(t.Context(), kind, text, at)
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return f
}

const sample = `# Quarterly report: EMEA / 2026

An *overview* with **bold**, ~~old~~, ` + "`code`" + ` and a [link](https://example.com/a?b=1&c=2).

## Revenue

<!-- chart: column -->
| Region | Revenue | Growth | Since | Open |
|:-------|--------:|-------:|-------|:----:|
| North  | 1,234.50 | 12.5% | 2024-01-31 | true |
| South  | 987 | -3% | 2024-02-29 | false |
| שלום | $1,000 | 0.1% | 2024-13-01 | maybe |

## Next steps

1. First
2. Second
   - nested **one**
     - deeper

> A quotation

` + "```go\nfunc main() { fmt.Println(\"<x>\") }\n```" + `

---

Last words.
`

// A text renders in every kind, the same each time; examples can be written with
// DELIVERABLE_OUT to be looked at.
func TestTheSameBytesEachTime(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds {
		a, b := render(t, kind, sample), render(t, kind, sample)
		if !bytes.Equal(a.Content, b.Content) {
			t.Errorf("%s: two renderings differ", kind)
		}
		if want := "Quarterly-report-EMEA-2026." + string(kind); a.Name != want {
			t.Errorf("name %q, want %q", a.Name, want)
		}
		if dir := os.Getenv("DELIVERABLE_OUT"); dir != "" {
			if err := os.WriteFile(path.Join(dir, a.Name), a.Content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"no heading", "Answer.xlsx"},
		{"# ../../etc/passwd", "etc-passwd.xlsx"},
		{"# \"; filename=evil.exe\r\nSet-Cookie: a", "filename-evil-exe.xlsx"},
		{"# Übersicht für März", "Übersicht-für-März.xlsx"},
		{"# تقرير المبيعات", "تقرير-المبيعات.xlsx"},
		{"# \u202Efdp.exe", "fdp-exe.xlsx"},
		{"# !!!", "answer.xlsx"},
		{"# CON", "CON-.xlsx"},
		{"# [a](javascript:x) **b**", "a-b.xlsx"},
		{"#\n\n# Second", "Second.xlsx"},
	} {
		if got := render(t, XLSX, c.text).Name; got != c.want {
			t.Errorf("%q is named %q, want %q", c.text, got, c.want)
		}
	}
	if got := render(t, HTML, "# "+strings.Repeat("ä", 5000)).Name; len(got) > maxName+5 || !utf8.ValidString(got) {
		t.Errorf("a name of %d bytes", len(got))
	}
}

func workbookOf(t testing.TB, text string) *excelize.File {
	t.Helper()
	f, err := excelize.OpenReader(bytes.NewReader(render(t, XLSX, text).Content))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// one returns a workbook with a table of one column.
func oneColumn(cells ...string) string {
	return "| head |\n|---|\n| " + strings.Join(cells, " |\n| ") + " |\n"
}

func TestCellsAreTyped(t *testing.T) {
	t.Parallel()
	const number, text, boolean = excelize.CellTypeUnset, excelize.CellTypeSharedString, excelize.CellTypeBool
	for _, c := range []struct {
		cell  string
		typed excelize.CellType
		raw   string
		shown string
	}{
		{"42", number, "42", "42"},
		{"-7", number, "-7", "-7"},
		{"1.50", number, "1.5", "1.50"},
		{"1,234", number, "1234", "1,234"},
		{"1,234,567.25", number, "1234567.25", "1,234,567.25"},
		{"12.5%", number, "0.125", "12.5%"},
		{"0.1%", number, "0.001", "0.1%"},
		{"$1,000", number, "1000", "$1,000"},
		{"-$3.20", number, "-3.2", ""},
		{"9.99 €", number, "9.99", "9.99 €"},
		{"2024-02-29", number, "45351", "2024-02-29"},
		{"2024-02-29 12:00", number, "45351.5", "2024-02-29 12:00:00"},
		{"TRUE", boolean, "1", "TRUE"},
		{"false", boolean, "0", "FALSE"},
		{"**12**", number, "12", "12"},
		// Everything else is text.
		{"2023-02-29", text, "2023-02-29", ""},
		{"1899-12-31", text, "1899-12-31", ""},
		{"007", text, "007", ""},
		{"1e5", text, "1e5", ""},
		{"12,34", text, "12,34", ""},
		{"1.234.567", text, "1.234.567", ""},
		{"--5", text, "--5", ""},
		{"$-5", text, "$-5", ""},
		{"01/02/2024", text, "01/02/2024", ""},
		{"1234567890123456", text, "1234567890123456", ""},
		{"Infinity", text, "Infinity", ""},
		{"NaN", text, "NaN", ""},
		{"0x10", text, "0x10", ""},
		{"USD 5", text, "USD 5", ""},
		// Text that a spreadsheet could take for a formula.
		{"=1+1", text, "=1+1", ""},
		{"=HYPERLINK(\"http://x.test\",\"a\")", text, "=HYPERLINK(\"http://x.test\",\"a\")", ""},
		{"+49 30 1234", text, "+49 30 1234", ""},
		{"-2+3", text, "-2+3", ""},
		{"@SUM(A1)", text, "@SUM(A1)", ""},
		{"`=cmd\\|' /C calc'!A0`", text, "=cmd|' /C calc'!A0", ""},
		{"&#61;1+1", text, "=1+1", ""},
	} {
		f := workbookOf(t, oneColumn(c.cell))
		sheet := f.GetSheetName(0)
		typed, err := f.GetCellType(sheet, "A2")
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := f.GetCellValue(sheet, "A2", excelize.Options{RawCellValue: true})
		shown, _ := f.GetCellValue(sheet, "A2")
		formula, _ := f.GetCellFormula(sheet, "A2")
		if typed == excelize.CellTypeNumber {
			typed = number
		}
		if typed != c.typed || raw != c.raw || formula != "" || c.shown != "" && shown != c.shown {
			t.Errorf("%s is of type %d, %q, shown %q, formula %q; want type %d, %q, %q", c.cell, typed, raw, shown, formula, c.typed, c.raw, c.shown)
		}
	}
}

// In a column with decimal commas a comma separates no thousands.
func TestDecimalCommas(t *testing.T) {
	t.Parallel()
	f := workbookOf(t, oneColumn("1,5", "1,234"))
	if typed, _ := f.GetCellType(f.GetSheetName(0), "A3"); typed != excelize.CellTypeSharedString {
		t.Errorf("1,234 beside 1,5 is of type %d", typed)
	}
}

func TestSheets(t *testing.T) {
	t.Parallel()
	table := "\n\n| a | b |\n|---|---|\n| x | 1 |\n\n"
	f := workbookOf(t, table+"# Sales: [Q1] / 2026 * everything that is long"+table+"## 'History'"+table+"## Sales"+table+table+"## sales"+table+"## \u202E\u0001?"+table)
	want := []string{"Table", "Sales Q1 2026 everything that i", "History (2)", "Sales", "Sales (2)", "sales (3)", "Table (2)"}
	if want[1] = cutUnits(want[1], maxSheetName); !slices.Equal(f.GetSheetList(), want) {
		t.Errorf("sheets %q, want %q", f.GetSheetList(), want)
	}
	panes, err := f.GetPanes("Sales")
	if err != nil || !panes.Freeze || panes.YSplit != 1 {
		t.Errorf("panes %+v, %v", panes, err)
	}
	style, _ := f.GetCellStyle("Sales", "A1")
	if s, err := f.GetStyle(style); err != nil || s.Font == nil || !s.Font.Bold {
		t.Errorf("the header's style is %+v, %v", s, err)
	}
	content := partOf(t, render(t, XLSX, table).Content, "xl/worksheets/sheet1.xml")
	if !strings.Contains(content, `<autoFilter ref="$A$1:$B$2"`) {
		t.Error("no filter")
	}
}

// References to sheets, which Excel follows when it opens the file: no name needs an escape in one.
func TestAnApostropheInAHeading(t *testing.T) {
	t.Parallel()
	table := "\n\n<!-- chart: column -->\n\n| a | b |\n|---|---|\n| x | 1 |\n\n"
	f := render(t, XLSX, "## Bob's sales"+table+"## ''tis Bob's'"+table).Content
	book, chart := html.UnescapeString(partOf(t, f, "xl/workbook.xml")), html.UnescapeString(partOf(t, f, "xl/charts/chart1.xml"))
	for _, name := range []string{"Bob’s sales", "tis Bob’s"} {
		if !strings.Contains(book, `name="`+name+`"`) || !strings.Contains(book, `>'`+name+`'!$A$1:$B$2</definedName>`) {
			t.Errorf("%s: %s", name, book)
		}
	}
	if !strings.Contains(chart, "<f>'Bob’s sales'!$A$2</f>") {
		t.Errorf("%s", chart)
	}
}

// Excel compares names of sheets without case, also where a letter has several small or capital forms.
func TestHeadingsThatDifferByCase(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{{"Sales", "SALES"}, {"5 µm", "5 μm"}, {"Τιμες", "ΤΙΜΕΣ"}, {"Straße", "STRAẞE"}, {"Kelvin", "\u212Aelvin"}} {
		text := ""
		for i, h := range pair {
			text += fmt.Sprintf("# %s\n\n| a |\n|---|\n| x%d |\n\n", h, i)
		}
		f := workbookOf(t, text)
		list := f.GetSheetList()
		if want := []string{pair[0], pair[1] + " (2)"}; !slices.Equal(list, want) {
			t.Errorf("sheets %q, want %q", list, want)
			continue
		}
		for i, sheet := range list {
			if got, err := f.GetCellValue(sheet, "A2"); err != nil || got != fmt.Sprintf("x%d", i) {
				t.Errorf("%s holds %q, %v", sheet, got, err)
			}
		}
	}
}

func TestWithoutATable(t *testing.T) {
	t.Parallel()
	f := workbookOf(t, "# Title\n\nSome *text*\n\n- one\n  - two\n\n=1+1\n")
	rows, err := f.GetRows("Title")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, strings.Join(r, "|"))
	}
	if want := []string{"Title", "Some text", "• one", "    • two", "=1+1"}; !slices.Equal(got, want) || f.SheetCount != 1 {
		t.Errorf("%q, want %q", got, want)
	}
	if empty := workbookOf(t, ""); empty.SheetCount != 1 {
		t.Error("an empty text has no sheet")
	}
}

func TestAnOverLongCellIsCut(t *testing.T) {
	t.Parallel()
	for _, c := range []string{"a", "😀"} {
		f := workbookOf(t, oneColumn(strings.Repeat(c, 40_000)))
		got, err := f.GetCellValue(f.GetSheetName(0), "A2")
		if n := len(utf16.Encode([]rune(got))); err != nil || n > maxCell || n < maxCell-1 || !utf8.ValidString(got) {
			t.Errorf("%s: %d units, %v", c, n, err)
		}
	}
}

func TestChartsOfMarkedTables(t *testing.T) {
	t.Parallel()
	table := "| a | n | s |\n|---|---|---|\n| x | 1 | t |\n| y | 2.5 | u |\n"
	for _, c := range []struct {
		mark    string
		drawn   bool
		element string
	}{
		{"<!-- chart: column -->", true, "barChart"},
		{"<!--chart:bar-->", true, "barChart"},
		{"<!-- Chart: LINE -->", true, "lineChart"},
		{"<!-- chart: pie -->", true, "pieChart"},
		{"<!-- chart: pie -->\n", true, "pieChart"}, // a blank line in between
		{"<!-- chart: radar -->", false, ""},
		{"<!-- chart: pie -->\nother text\n", false, ""},
		{"", false, ""},
	} {
		text := "## T\n\n" + c.mark + "\n" + table
		for kind, part := range map[Kind]string{XLSX: "xl/charts/chart1.xml", PPTX: "ppt/charts/chart1.xml"} {
			content := partOf(t, render(t, kind, text).Content, part)
			if drawn := content != ""; drawn != c.drawn || drawn && !strings.Contains(content, c.element+">") {
				t.Errorf("%q in %s: drawn %v", c.mark, kind, drawn)
			}
		}
		page := string(render(t, HTML, text).Content)
		if strings.Contains(page, "<svg") != c.drawn || strings.Contains(page, "chart:") {
			t.Errorf("%q in html: drawn %v", c.mark, !c.drawn)
		}
	}
	if c := partOf(t, render(t, XLSX, "<!-- chart: bar -->\n| a | b |\n|---|---|\n| x | y |\n").Content, "xl/charts/chart1.xml"); c != "" {
		t.Error("a table without numbers is drawn")
	}
}

func partOf(t testing.TB, content []byte, name string) string {
	t.Helper()
	return parts(t, content)[name]
}

func parts(t testing.TB, content []byte) map[string]string {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := out[f.Name]; twice {
			t.Errorf("part %s is there twice", f.Name)
		}
		out[f.Name] = string(b)
	}
	return out
}

// checkPackage checks that a presentation is a valid package: each part is well-formed and has a
// content type, each relationship leads to a part, each r:id is a relationship.
func checkPackage(t testing.TB, content []byte) map[string]string {
	t.Helper()
	all := parts(t, content)
	types := all["[Content_Types].xml"]
	for name, text := range all {
		ids := map[string]bool{}
		dir, base := path.Split(name)
		rels := all[dir+"_rels/"+base+".rels"]
		d := xml.NewDecoder(strings.NewReader(rels))
		for {
			tok, err := d.Token()
			if err != nil {
				break
			}
			start, ok := tok.(xml.StartElement)
			if !ok || start.Name.Local != "Relationship" {
				continue
			}
			a := attributes(start)
			ids[a["Id"]] = true
			if a["TargetMode"] == "External" {
				if safeURL(a["Target"]) == "" {
					t.Errorf("%s leads to %q", name, a["Target"])
				}
			} else if target := path.Join(dir, a["Target"]); all[target] == "" {
				t.Errorf("%s leads to %s, which is not there", name, target)
			}
		}
		d = xml.NewDecoder(strings.NewReader(text))
		for {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if start, ok := tok.(xml.StartElement); ok {
				for _, a := range start.Attr {
					if strings.HasSuffix(a.Name.Space, "officeDocument/2006/relationships") && !ids[a.Value] {
						t.Errorf("%s: %s has no relationship", name, a.Value)
					}
				}
			}
		}
		if !strings.HasSuffix(name, ".rels") && name != "[Content_Types].xml" && !strings.Contains(types, `PartName="/`+name+`"`) {
			t.Errorf("%s has no content type", name)
		}
	}
	return all
}

func attributes(s xml.StartElement) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attr {
		out[a.Name.Local] = a.Value
	}
	return out
}

// texts returns the texts of each slide.
func texts(t testing.TB, all map[string]string) (out []string) {
	t.Helper()
	for n := 1; all[fmt.Sprintf("ppt/slides/slide%d.xml", n)] != ""; n++ {
		var b strings.Builder
		d := xml.NewDecoder(strings.NewReader(all[fmt.Sprintf("ppt/slides/slide%d.xml", n)]))
		in := false
		for {
			tok, err := d.Token()
			if err != nil {
				break
			}
			switch v := tok.(type) {
			case xml.StartElement:
				in = v.Name.Local == "t"
			case xml.EndElement:
				if in = false; v.Name.Local == "p" {
					b.WriteByte('\n')
				}
			case xml.CharData:
				if in {
					b.Write(v)
				}
			}
		}
		out = append(out, b.String())
	}
	return out
}

func TestHeadingsBecomeSlides(t *testing.T) {
	t.Parallel()
	got := texts(t, checkPackage(t, render(t, PPTX, sample).Content))
	if len(got) != 5 {
		t.Fatalf("%d slides: %q", len(got), got)
	}
	for i, want := range []string{"Quarterly report: EMEA / 2026\n", "Quarterly report: EMEA / 2026\nAn overview with bold, old, code and a link.", "Revenue\n", "Revenue\nRegion\n", "Next steps\n1. First\n2. Second\nnested one\n"} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("slide %d is %q, want %q", i+1, got[i], want)
		}
	}
	if !strings.Contains(got[4], `func main() { fmt.Println("<x>") }`) || !strings.Contains(got[4], "Last words.") {
		t.Errorf("the last slide is %q", got[4])
	}
}

func TestLongContentGoesOnOnFurtherSlides(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Long\n\n")
	for i := range 40 {
		fmt.Fprintf(&b, "- point %d\n", i)
	}
	b.WriteString("\n" + strings.Repeat("word ", 2000) + "end\n\n| n |\n|---|\n")
	for i := range 60 {
		fmt.Fprintf(&b, "| row %d |\n", i)
	}
	got := texts(t, checkPackage(t, render(t, PPTX, b.String()).Content))
	all := strings.Join(got, "")
	if len(got) < 12 || len(got) > 30 {
		t.Errorf("%d slides", len(got))
	}
	for i := range 60 {
		if want := fmt.Sprintf("row %d\n", i); strings.Count(all, want) != 1 {
			t.Errorf("%q is there %d times", want, strings.Count(all, want))
		}
	}
	if strings.Count(all, "word") != 2000 || strings.Count(all, "point ") != 40 {
		t.Errorf("%d words, %d points", strings.Count(all, "word"), strings.Count(all, "point "))
	}
	for i, s := range got[1:] {
		if !strings.HasPrefix(s, "Long\n") {
			t.Errorf("slide %d has no title: %q", i+2, s)
		}
	}
}

// hostile are texts that try to get markup, addresses or scripts into a file.
var hostile = []string{
	"<script>alert(1)</script>", "<img src=https://evil.test/x.png onerror=alert(1)>", "![x](https://evil.test/track.png)", "![x][r]\n\n[r]: https://evil.test/r.png",
	"[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](java\nscript:alert(1))", "[a](data:text/html;base64,PHNjcmlwdD4=)", "[a](//evil.test/x)", "[a](file:///etc/passwd)",
	"[a](&#106;avascript:alert(1))", "[a](https://ok.test/\"onclick=\"alert(1))", "<javascript:alert(1)>", "[a](vbscript:x)", "<a href=\"javascript:x\">y</a>",
	"# <title></title><script>x</script>", "</style></title></textarea>--><script>alert(1)</script>", "```\n</code></pre><script>x</script>\n```", "`</code><script>`",
	"| <script>x</script> | b |\n|---|---|\n| <iframe src=//evil.test> | <svg/onload=x> |", "<!-- chart: \"><script>x</script> -->", "<style>@import url(https://evil.test)</style>",
	"&lt;script&gt;alert(1)&lt;/script&gt;", "]]>", "<![CDATA[x]]>", "<?xml version=\"1.0\"?><!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]>&e;", "\x00\x01\x1b[31m\ufffe\uffff\xff\xfe",
	"<!-- chart: pie -->\n| <b>x | y\" onload=\"z |\n|---|---|\n| </title><script>q</script> | 5 |", "- <script>\n  - </ul></li><script>", "> <script>", "<br><BR/><br />", "\u202Eevil\u202C",
}

func TestThePageLoadsNothing(t *testing.T) {
	t.Parallel()
	allowed := map[string][]string{
		"html": nil, "head": nil, "body": nil, "title": nil, "style": nil, "meta": {"charset", "http-equiv", "content", "name"}, "main": {"dir"},
		"p": {"dir"}, "h1": {"dir"}, "h2": {"dir"}, "h3": {"dir"}, "h4": {"dir"}, "h5": {"dir"}, "h6": {"dir"}, "ul": nil, "ol": nil, "li": {"dir", "value"},
		"blockquote": nil, "pre": {"dir"}, "code": nil, "hr": nil, "br": nil, "strong": nil, "em": nil, "del": nil, "a": {"href", "rel"}, "figure": nil,
		"div": {"class"}, "table": {"dir"}, "thead": nil, "tbody": nil, "tr": nil, "th": {"class"}, "td": {"class"},
		"svg":  {"xmlns", "role", "viewBox", "width", "font-family", "font-size"},
		"text": {"x", "y", "text-anchor", "fill"}, "rect": {"x", "y", "width", "height", "fill"}, "line": {"x1", "x2", "y1", "y2", "stroke"},
		"polyline": {"fill", "stroke-width", "stroke", "points"}, "path": {"d", "fill", "stroke"}, "circle": {"cx", "cy", "r", "fill"},
	}
	for _, text := range append([]string{sample, strings.Join(hostile, "\n\n")}, hostile...) {
		content := render(t, HTML, text).Content
		root, err := html.Parse(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		var policySeen bool
		for n := range root.Descendants() {
			if n.Type == html.CommentNode {
				t.Errorf("%q: a comment: %q", text, n.Data)
			}
			if n.Type != html.ElementNode {
				continue
			}
			attrs, ok := allowed[n.Data]
			if !ok {
				t.Errorf("%q: an element %s", text, n.Data)
			}
			for _, a := range n.Attr {
				switch {
				case !slices.Contains(attrs, a.Key):
					t.Errorf("%q: an attribute %s of %s", text, a.Key, n.Data)
				case a.Key == "href" && !strings.HasPrefix(a.Val, "https://") && !strings.HasPrefix(a.Val, "http://") && !strings.HasPrefix(a.Val, "mailto:"):
					t.Errorf("%q: a link to %q", text, a.Val)
				case a.Key == "http-equiv":
					policySeen = a.Val == "Content-Security-Policy"
				}
			}
		}
		if !policySeen || strings.Contains(string(style), "url(") || strings.Contains(style, "@import") {
			t.Errorf("%q: no policy, or a style that loads", text)
		}
	}
}

func TestHostileTextsStayText(t *testing.T) {
	t.Parallel()
	for _, text := range append(hostile, strings.Join(hostile, "\n\n")) {
		checkPackage(t, render(t, PPTX, text).Content)
		f := workbookOf(t, text)
		for _, sheet := range f.GetSheetList() {
			if len(utf16.Encode([]rune(sheet))) > maxSheetName || strings.ContainsAny(sheet, `:\/?*[]`) {
				t.Errorf("%q: a sheet %q", text, sheet)
			}
		}
		for name, part := range parts(t, render(t, XLSX, text).Content) {
			if strings.HasPrefix(name, "xl/worksheets/") && strings.Contains(part, "<f") || strings.Contains(part, "evil.test") && strings.HasSuffix(name, ".rels") {
				t.Errorf("%q: a formula or an address in %s", text, name)
			}
		}
	}
}

func TestInline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ src, want string }{
		{"a *b* **c** ***d*** ~~e~~", "a |i:b| |b:c| |bi:d| |s:e"},
		{"snake_case_name and __bold__", "snake_case_name and |b:bold"},
		{"2 * 3 * 4", "2 * 3 * 4"},
		{"**open", "**open"},
		{`\*not\* \[x\]`, "*not* [x]"},
		{"`a*b` ``c`d``", "c:a*b| |c:c`d"},
		{"[a **b**](https://x.test/y) z", "l:a |bl:b| z"},
		{"[a](javascript:x)", "a"},
		{"see https://x.test/a_b. Bye", "see |l:https://x.test/a_b|. Bye"},
		{"<https://x.test> <b>", "l:https://x.test| <b>"},
		{"![chart](https://x.test/a.png)", "[chart]"},
		{"a  \nb\nc\\\nd<br>e", "a   b c\nd\ne"},
		{"&amp; &lt;b&gt; &copy;", "& <b> ©"},
		{"[kb:0190#3] stays", "[kb:0190#3] stays"},
		{"mail <mailto:a@b.test>", "mail |l:mailto:a@b.test"},
		{"[x](mailto:a@b.test)", "l:x"},
	} {
		var got []string
		for _, s := range inline(c.src) {
			marks := ""
			for _, m := range []struct {
				is   bool
				mark string
			}{{s.bold, "b"}, {s.italic, "i"}, {s.strike, "s"}, {s.code, "c"}, {s.link != "", "l"}} {
				if m.is {
					marks += m.mark
				}
			}
			if marks != "" {
				marks += ":"
			}
			got = append(got, marks+s.text)
		}
		if g := strings.Join(got, "|"); g != c.want {
			t.Errorf("%q is %q, want %q", c.src, g, c.want)
		}
	}
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ src, want string }{
		{"# A #\ntext\nmore\n\nB\n===\nC\n---\n", "h1 A|p text more|h1 B|h2 C"},
		{"- a\n- b\n  continued\n\n  paragraph\n\nout", "i1 a|i1 b continued|p1 paragraph|p out"},
		{"1. a\n   * b\n     1) c\n2. d", "i1 a|i2 b|i3 c|i1 d"},
		{"text\n- a\ntext", "p text|i1 a text"},
		{"> q\n> r\n\n>> deep", "p>1 q r|p>2 deep"},
		{"```\n# no\n- no\n```\nyes", "c # no\n- no|p yes"},
		{"~~~\nnever closed", "c never closed"},
		{"    indented\n    code\n\ntext", "c indented\ncode|p text"},
		{"a\n***\nb", "p a|r|p b"},
		{"intro\n| a | b |\n|---|:-:|\n| 1 |\n| 1 | 2 | 3 |\nend", "p intro|t a;b/1;/1;2|p end"},
		{"| a \\| x | `b` |\n|-|-|\n| \\|\\| | |", "t a | x;`b`/||;"},
		{"a | b\n-- | --\n1 | 2", "t a;b/1;2"},
		{"| a | b |\n|---|\n", "p | a | b | |---|"},
		{"<!-- a comment -->\ntext", "p text"},
		{"#nospace", "p #nospace"},
		{"\r\na\r\nb\r\n", "p a b"},
	} {
		d, err := parse(t.Context(), clean(c.src))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range d.blocks {
			b := &d.blocks[i]
			s := [...]string{"p", "h", "i", "c", "r", "t"}[b.kind]
			if n := b.level + b.depth; n > 0 {
				s += fmt.Sprint(n)
			}
			if b.quote > 0 {
				s += fmt.Sprint(">", b.quote)
			}
			text := b.plain()
			if b.kind == code {
				text = b.text
			}
			if b.kind == table {
				var rows []string
				for _, r := range b.rows {
					rows = append(rows, strings.Join(r, ";"))
				}
				text = strings.Join(rows, "/")
			}
			got = append(got, strings.TrimSuffix(s+" "+text, " "))
		}
		if g := strings.Join(got, "|"); g != c.want {
			t.Errorf("%q is %q, want %q", c.src, g, c.want)
		}
	}
}

func TestWhatIsTooLargeIsAFault(t *testing.T) {
	t.Parallel()
	wide := "|" + strings.Repeat("a|", maxColumns+1) + "\n|" + strings.Repeat("-|", maxColumns+1) + "\n"
	for name, c := range map[string]struct {
		kind Kind
		text string
	}{
		"bytes":   {XLSX, strings.Repeat("a", MaxInput+1)},
		"cells":   {XLSX, "|a|b|c|d|\n|-|-|-|-|\n" + strings.Repeat("|1|2|3|4|\n", maxCells/4)},
		"columns": {HTML, wide},
		"tables":  {HTML, strings.Repeat("|a|\n|-|\n\n", maxTables+1)},
		"blocks":  {HTML, strings.Repeat("#\n", maxBlocks+1)},
		"slides":  {PPTX, strings.Repeat("# a\n", maxSlides+1)},
		"kind":    {"docx", "a"},
	} {
		_, err := Render(t.Context(), c.kind, c.text, at)
		if f := new(Fault); !errors.As(err, &f) || f.Reason == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One less is rendered.
	if f := render(t, PPTX, strings.Repeat("# a\n", maxSlides)); len(f.Content) == 0 {
		t.Error("nothing was rendered")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, kind := range Kinds {
		if _, err := Render(ended, kind, sample, at); !errors.Is(err, context.Canceled) {
			t.Errorf("%s after its end: %v", kind, err)
		}
	}
}

func TestALargeTable(t *testing.T) {
	t.Parallel()
	const rows = 25_000
	var b strings.Builder
	b.WriteString("|a|b|c|d|\n|-|-|-|-|\n")
	for i := range rows - 1 {
		fmt.Fprintf(&b, "|%d|x|2024-01-01|true|\n", i)
	}
	f := workbookOf(t, b.String())
	if got, err := f.GetCellValue("Table", fmt.Sprintf("A%d", rows)); err != nil || got != fmt.Sprint(rows-2) {
		t.Errorf("the last row is %q, %v", got, err)
	}
}

// pathological are texts that make careless readers of Markdown slow or deep. Each is repeated.
var pathological = []string{
	"[", "![", "[a](", "[](<", "`a``", "*a _b ", "**a*", "_a*", ">", "- ", "<", "<a ", "&", "\\", "http://", "(https://x.y", "|", "|-|\n", "~~a", "[a](b)", "*", "a*", "\t", "1. ", "#", "```\n", "<!--", "[[]", "]", "\n\n- a", ">- ",
}

func TestPathologicalTexts(t *testing.T) {
	t.Parallel()
	for _, p := range pathological {
		text := strings.Repeat(p, 64<<10/len(p))
		for _, kind := range Kinds {
			if _, err := Render(t.Context(), kind, text, at); err != nil && !errors.As(err, new(*Fault)) {
				t.Errorf("%s of %q: %v", kind, p, err)
			}
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add(sample)
	for _, s := range append(hostile, pathological...) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range Kinds {
			out, err := Render(t.Context(), kind, text, at)
			if err != nil {
				if !errors.As(err, new(*Fault)) {
					t.Fatal(err)
				}
				continue
			}
			if kind == PPTX {
				checkPackage(t, out.Content)
			}
			if strings.ContainsAny(out.Name, "/\\\"\r\n") {
				t.Fatalf("a name %q", out.Name)
			}
		}
	})
}
