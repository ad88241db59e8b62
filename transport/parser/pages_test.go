package parser

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/document"
)

// bookOf makes a PDF of pages as printers make them: 45 lines of 80 letters a page, each content compressed,
// and a font whose codes are no letters (ToUnicode).
func bookOf(t testing.TB, pages int) string {
	t.Helper()
	var b bytes.Buffer
	offsets := []int{}
	object := func(body string) {
		offsets = append(offsets, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", len(offsets), body)
	}
	stream := func(content string) {
		var z bytes.Buffer
		w := zlib.NewWriter(&z)
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
		w.Close()
		object(fmt.Sprintf("<</Filter/FlateDecode/Length %d>>\nstream\n%s\nendstream", z.Len(), z.Bytes()))
	}
	b.WriteString("%PDF-1.5\n")
	object("<</Type/Catalog/Pages 2 0 R>>")
	var kids strings.Builder
	for i := range pages {
		fmt.Fprintf(&kids, "%d 0 R ", 5+2*i)
	}
	object(fmt.Sprintf("<</Type/Pages/Count %d/Kids[%s]/Resources<</Font<</F 3 0 R>>>>>>", pages, kids.String()))
	object("<</Type/Font/Subtype/Type0/BaseFont/ABCDEF+Own/Encoding/Identity-H/ToUnicode 4 0 R/DescendantFonts[<</Type/Font/Subtype/CIDFontType2/BaseFont/Own/DW 500>>]>>")
	stream("begincmap 1 begincodespacerange <0000> <FFFF> endcodespacerange 1 beginbfrange <0001> <005F> <0020> endbfrange endcmap")
	for page := range pages {
		object(fmt.Sprintf("<</Type/Page/Parent 2 0 R/Contents %d 0 R>>", 6+2*page))
		var c strings.Builder
		c.WriteString("BT /F 11 Tf 14 TL 72 760 Td\n")
		for line := range 45 {
			text := fmt.Sprintf("Page %d line %d: a parcel that is lost is refunded in three working days, says rule %d.", page+1, line+1, page*45+line)
			c.WriteByte('<')
			for i := range len(text) {
				fmt.Fprintf(&c, "%04X", text[i]-0x1f)
			}
			c.WriteString("> Tj T*\n")
		}
		c.WriteString("ET")
		stream(c.String())
	}
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(offsets)+1)
	for _, o := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(offsets)+1, start)
	return b.String()
}

// A PDF of 500 pages is read whole by a child that may have 96 MiB of memory and 20 s of computing, less
// than children have by default. Measured: 24 MiB and 1 s.
func TestAPDFOf500Pages(t *testing.T) {
	t.Parallel()
	p := testParser(t, func(c *Config) { c.Memory, c.CPU = 96<<20, 20*time.Second })
	const pages = 500
	var first, last string
	var letters int
	info, err := p.Parse(t.Context(), input("book.pdf", bookOf(t, pages)), document.Chunking{MaxTokens: 400, OverlapTokens: 60}, func(c document.Chunk) error {
		if first == "" {
			first = c.Text
		}
		last = c.Text
		letters += len(c.Text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	end := fmt.Sprintf("Page %d line 45: a parcel that is lost is refunded in three working days, says rule %d.", pages, pages*45-1)
	if info.MediaType != "application/pdf" || info.Chunks < pages || letters < pages*45*80 || !strings.HasPrefix(first, "Page 1 line 1: a parcel") || !strings.HasSuffix(strings.TrimSpace(last), end) {
		t.Errorf("%+v with %d letters, from %.80q to %q", info, letters, first, last)
	}
}
