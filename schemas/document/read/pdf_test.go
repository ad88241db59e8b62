package read

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsvc/schemas/document"
)

// A PDF that is encrypted so that it may not be printed or changed opens without a password, and is read. One
// that asks for a password fails with a plain reason. The files of testdata/pdf were made by another program
// (qpdf --encrypt); the owner's password of each is "owner", and that of users of *-password.pdf "secret".
func TestEncryptedPDFs(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/pdf/*.pdf")
	if err != nil {
		t.Fatal(err)
	}
	opened, asked := 0, 0
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "-password.pdf") {
			asked++
			expectFault(t, name, data, Limits{}, "the PDF is protected by a password")
			continue
		}
		opened++
		expect(t, name, data, typePDF, "Refunds of 2026", "paragraph p1: Refunds take three days.")
		// Whatever is torn of it, the reading ends with its text, or with a fault in words.
		for at := 0; at < len(data); at += 29 {
			torn := bytes.Clone(data)
			torn[at] ^= 0x15
			if _, _, err := blocks(t, name, torn, Limits{}); err != nil && !errors.As(err, new(*document.Fault)) {
				t.Errorf("%s with another byte at %d: %v", name, at, err)
			}
		}
	}
	if opened != 7 || asked != 5 {
		t.Errorf("%d files that open and %d that ask for a password", opened, asked)
	}
	whole := pdfOf("text")
	for name, encrypt := range map[string]string{
		"another security handler": "<</Filter/Adobe.PubSec/V 4/R 4>>", "a method of the future": "<</Filter/Standard/V 9/R 9/O(x)/U(y)/P -1>>",
	} {
		expectFault(t, name, bytes.Replace(whole, []byte("/Root 1 0 R"), []byte("/Encrypt"+encrypt+"/Root 1 0 R"), 1), Limits{}, "the PDF is protected by a password")
	}
	expectFault(t, "keys that are cut off", bytes.Replace(whole, []byte("/Root 1 0 R"), []byte("/Encrypt<</Filter/Standard/V 2/R 3/O(x)/U(y)/P -1>>/Root 1 0 R"), 1), Limits{}, "the PDF is damaged")
}

// pdfWith makes a PDF of one page with a font, further objects from number 6 on, and a content.
func pdfWith(font, content string, objects ...string) []byte {
	return pdfFrom(append([]string{onePage[0], onePage[1], font, onePage[2], streamOf("BT /F 12 Tf 72 700 Td " + content + " Tj ET")}, objects...)...)
}

// onePage is what a PDF of one page has but for its font, object 3, and its content, object 5: objects 1, 2 and 4.
var onePage = [...]string{"<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Count 1/Kids[4 0 R]/Resources<</Font<</F 3 0 R>>>>>>", "<</Type/Page/Parent 2 0 R/Contents 5 0 R>>"}

// pdfFrom makes a PDF of objects, which begin with number 1, the catalogue.
func pdfFrom(objects ...string) []byte {
	var b bytes.Buffer
	offsets := []int{}
	b.WriteString("%PDF-1.5\n")
	for i, body := range objects {
		offsets = append(offsets, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", i+1, body)
	}
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(offsets)+1)
	for _, o := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(offsets)+1, start)
	return b.Bytes()
}

func streamOf(s string) string {
	return fmt.Sprintf("<</Length %d>>\nstream\n%s\nendstream", len(s), s)
}

// The text of a PDF is what its maps of codes say (ISO 32000-1, 9.10): ToUnicode before the font's encoding,
// ligatures, letters beyond 16 bits, codes of one and of two bytes; and never nonsense where a map is missing
// or torn.
func TestTextOfPDFsByTheirMaps(t *testing.T) {
	t.Parallel()
	const (
		simple    = "<</Type/Font/Subtype/TrueType/BaseFont/ABCDEF+Own/FirstChar 1/LastChar 6/Widths[500 500 500 500 500 500]/ToUnicode 6 0 R>>"
		composite = "<</Type/Font/Subtype/Type0/BaseFont/ABCDEF+Own/Encoding/Identity-H/ToUnicode 6 0 R/DescendantFonts[<</Type/Font/Subtype/CIDFontType2/BaseFont/Own/DW 500>>]>>"
		mixed     = "<</Type/Font/Subtype/Type0/BaseFont/ABCDEF+Own/Encoding 7 0 R/ToUnicode 6 0 R/DescendantFonts[<</Type/Font/Subtype/CIDFontType2/BaseFont/Own/DW 500>>]>>"
	)
	wrap := func(body string) string {
		return streamOf("/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /Adobe-Identity-UCS def\n" + body + "\nendcmap end end")
	}
	wide := "1 begincodespacerange <0000> <FFFF> endcodespacerange\n"
	for _, c := range []struct {
		name, font, content, want string
		objects                   []string
	}{
		{"a subset whose codes mean nothing by themselves", simple, "<010203>", "Röd",
			[]string{wrap("1 begincodespacerange <00> <FF> endcodespacerange 3 beginbfchar <01> <0052> <02> <00F6> <03> <0064> endbfchar")}},
		{"a ligature, and a letter beyond 16 bits", simple, "<01020304>", "office𝄞",
			[]string{wrap("1 begincodespacerange <00> <FF> endcodespacerange 4 beginbfchar <01> <006F> <02> <006600660069> <03> <00630065> <04> <D834DD1E> endbfchar")}},
		{"two bytes, a range that counts", composite, "<00240025 0026>", "ABC", []string{wrap(wide + "1 beginbfrange <0024> <003D> <0041> endbfrange")}},
		{"a range that lists its texts", composite, "<000100020003>", "xßfi", []string{wrap(wide + "1 beginbfrange <0001> <0003> [<0078> <00DF> <00660069>] endbfrange")}},
		{"a range whose last text is beyond 16 bits", composite, "<00010002>", "𝄞𝄟", []string{wrap(wide + "1 beginbfrange <0001> <0002> <D834DD1E> endbfrange")}},
		{"Greek, Cyrillic and Han", composite, "<000100020003>", "Ωж中", []string{wrap(wide + "3 beginbfchar <0001> <03A9> <0002> <0436> <0003> <4E2D> endbfchar")}},
		{"many small maps", composite, "<00010002>", "ab", []string{wrap(wide + "1 beginbfchar <0001> <0061> endbfchar\n1 beginbfchar <0002> <0062> endbfchar")}},
		{"codes of one and of two bytes", mixed, "<41 8140 42>", "A中B", []string{
			wrap("2 begincodespacerange <00> <80> <8140> <FEFE> endcodespacerange 3 beginbfchar <41> <0041> <42> <0042> <8140> <4E2D> endbfchar"),
			wrap("2 begincodespacerange <00> <80> <8140> <FEFE> endcodespacerange")}},
		{"a code that the map lacks is left out", composite, "<000100090002>", "ab", []string{wrap(wide + "2 beginbfchar <0001> <0061> <0002> <0062> endbfchar")}},
		{"a map that is cut off", composite, "<0001>", "a", []string{streamOf("begincmap 1 beginbfchar <0001> <0061> endbfchar 1 beginbfchar <00")}},
		{"the differences of an encoding", "<</Type/Font/Subtype/Type1/BaseFont/Own/Encoding<</Differences[1/R/odieresis/d/uni03A9/f_f_i]>>>>", "<0102030405>", "RödΩffi", nil},
	} {
		expect(t, c.name, pdfWith(c.font, c.content, c.objects...), typePDF, "", "paragraph p1: "+c.want)
	}
	// Maps that cost: a range of everything, ranges without number, a text without end.
	for name, body := range map[string]string{
		"all codes":         wide + "1 beginbfrange <0000> <FFFF> <0000> endbfrange",
		"backwards":         wide + "1 beginbfrange <FFFF> <0000> <0041> endbfrange",
		"a long text":       wide + "1 beginbfchar <0001> <" + strings.Repeat("0041", 100_000) + "> endbfchar",
		"ranges in numbers": wide + strings.Repeat("1 beginbfrange <0000> <FFFF> <0041> endbfrange\n", 20_000),
	} {
		_, got, err := blocks(t, name, pdfWith(composite, "<0001>", wrap(body)), Limits{})
		if err != nil && !errors.As(err, new(*document.Fault)) || len(strings.Join(got, "")) > 1000 {
			t.Errorf("%s: %d bytes, %v", name, len(strings.Join(got, "")), err)
		}
	}
}
