package blackbox

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/schemas/deliverable"
)

// archived makes a ZIP archive of names and contents, in pairs.
func archived(t *testing.T, pairs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		w, err := z.Create(pairs[i])
		if err == nil {
			_, err = io.WriteString(w, pairs[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const wordXML = `<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>`

// word makes a text document.
func word(t *testing.T, paragraphs string) []byte {
	return archived(t, "word/document.xml", wordXML+paragraphs+`</w:body></w:document>`)
}

// swollen returns raw deflate data, without its end, of head and of 1 KiB that is repeated for so many MiB. It is a few
// hundred KiB long. A reader has to stop soon: it is a process of low priority, which a busy machine leaves little.
func swollen(t *testing.T, head, kibibyte string, mebibytes int) []byte {
	t.Helper()
	packed := func(text string) []byte {
		var b bytes.Buffer
		f, err := flate.NewWriter(&b, flate.BestCompression)
		if err == nil {
			_, err = io.WriteString(f, text)
		}
		if err == nil {
			err = f.Flush()
		}
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	return append(packed(head), bytes.Repeat(packed(strings.Repeat(kibibyte, 1<<10)), mebibytes)...)
}

// bomb makes an archive with a part that expands to so many MiB.
func bomb(t *testing.T, part string, data []byte, mebibytes int) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateRaw(&zip.FileHeader{Name: part, Method: zip.Deflate, CompressedSize64: uint64(len(data)), UncompressedSize64: uint64(mebibytes) << 20})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sampleOfPDF is a file of another program (schemas/document/read).
func sampleOfPDF(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "schemas", "document", "read", "testdata", "pdf", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// state is what the API says of a document.
type state struct {
	ID, Name, Status string
	Error            *string
	Kind             string `json:"media_type"`
}

// why returns the reason of a document that failed.
func (d state) why() string {
	if d.Error == nil {
		return ""
	}
	return *d.Error
}

// ended waits until no document of a base is in work, and returns all by name.
func (c *caller) ended(t *testing.T, ctx context.Context, base string, names int) map[string]state {
	t.Helper()
	all := map[string]state{}
	eventually(t, ctx, "all documents are read", func() bool {
		var list struct{ Items []state }
		c.ask(t, ctx, 200, "GET", "/v1/knowledge-bases/"+base+"/documents?limit=100", nil, &list)
		done := 0
		for _, d := range list.Items {
			if all[d.Name] = d; d.Status == "ready" || d.Status == "failed" {
				done++
			}
		}
		return done == names
	})
	return all
}

// peak returns the most memory that the node's process has had, in MiB.
func (n *process) peak(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(line)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// Files that are made to harm a reader, and files that lie, as one tenant uploads them: each is read, or fails with a
// plain reason. Another tenant's documents are read and found while the first tenant uploads ever more archives that
// expand without end, and the node itself takes little memory for all of it.
func TestHostileDocuments(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	n := newNode(t)
	n.start()
	c, quiet := n.tenant("hostile documents"), n.tenant("quiet documents")
	base := c.makes(t, ctx, "/v1/knowledge-bases", object{"name": "Hostile"})
	locked := word(t, "<w:p/>")
	locked[bytes.LastIndex(locked, []byte("PK\x01\x02"))+8] |= 1 // the member says that it is encrypted
	sample := sampleOfPDF(t, "rc4-40.pdf")
	loop := bytes.Replace(sample, []byte("/Kids [ 4 0 R ]"), []byte("/Kids [ 3 0 R ]"), 1) // the tree of pages is its own branch
	if bytes.Equal(loop, sample) {
		t.Fatal("the sample has another form")
	}
	endless := bomb(t, "word/document.xml", swollen(t, wordXML+"<w:p><w:r><w:t>", strings.Repeat("x", 1<<10), 300), 300)
	content := append([]byte("\x78\x9c"), swollen(t, "BT", strings.Repeat(" ", 1<<10), 300)...)
	pdfBomb := fmt.Appendf(nil, "%%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n2 0 obj\n<</Type/Pages/Count 1/Kids[3 0 R]>>\nendobj\n3 0 obj\n<</Type/Page/Parent 2 0 R/Contents 4 0 R>>\nendobj\n4 0 obj\n<</Length %d/Filter/FlateDecode>>\nstream\n%s\nendstream\nendobj\ntrailer\n<</Root 1 0 R>>\n", len(content), content)
	const tooLarge = "the PDF expands to more than 256 MiB"
	rows := []struct {
		name    string
		content []byte
		reason  string // of what fails
		kind    string // of what is read
	}{
		{"bomb.docx", endless, "the document holds a text or tag of more than 8 MiB", ""},
		{"bomb.pdf", pdfBomb, tooLarge, ""},
		{"entities.docx", archived(t, "word/document.xml", `<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>`+wordXML+`&b;</w:body></w:document>`), "the document holds a document type declaration, which is not allowed", ""},
		{"nested.docx", word(t, strings.Repeat("<w:p>", 100_000)), "the document is nested more than 2000 deep", ""},
		{"truncated.docx", word(t, "<w:p><w:r><w:t>a</w:t></w:r></w:p>")[:200], "the archive is damaged", ""},
		{"locked.docx", locked, "the file is protected by a password", ""},
		{"locked.xlsx", append([]byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), "E\x00n\x00c\x00r\x00y\x00p\x00t\x00e\x00d\x00P\x00a\x00c\x00k\x00a\x00g\x00e\x00"...), "the file is protected by a password", ""},
		{"locked.pdf", sampleOfPDF(t, "aes-256-password.pdf"), "the PDF is protected by a password", ""},
		{"truncated.pdf", sample[:60], "the PDF is damaged", ""},
		{"sheets.xlsx", archived(t, "xl/workbook.xml", `<workbook xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>`+strings.Repeat(`<sheet name="x" r:id="r"/>`, 10_000)+`</sheets></workbook>`), "the workbook has more than 1000 sheets", ""},
		{"path.docx", archived(t, "../../etc/passwd", "root"), "files of this kind cannot be read: a ZIP archive", ""},
		{"nested.json", []byte(strings.Repeat("[", 100_000)), "the JSON is nested more than 1000 deep", ""},
		{"picture.txt", []byte("\x89PNG\r\n\x1a\n0000"), "files of this kind cannot be read: a picture", ""},
		{"program.pdf", []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00"), "files of this kind cannot be read: a program", ""},
		{"loop.pdf", loop, "", "application/pdf"},
		{"mislabelled.txt", sampleOfPDF(t, "aes-128.pdf"), "", "application/pdf"},
		{"scripts.html", []byte("<html><script>scriptcanary()</script><p onclick='attributecanary()'>Shoes.</p><style>stylecanary{}</style></html>"), "", "text/html"},
	}
	files := map[string][]byte{}
	for _, row := range rows {
		files[row.name] = row.content
	}
	before := n.peak(t)
	if a, err := putDocuments(ctx, c, base, files); err != nil || a.status != http.StatusAccepted {
		t.Fatal(err, a)
	}
	// More of them all the time: each that ends is followed by another one.
	flood := c.makes(t, ctx, "/v1/knowledge-bases", object{"name": "Flood"})
	stop := make(chan struct{})
	var uploads sync.WaitGroup
	for i := range 2 {
		uploads.Go(func() {
			for name := fmt.Sprint(i, ".docx"); ; {
				select {
				case <-stop:
					return
				default:
				}
				a, err := putDocuments(ctx, c, flood, map[string][]byte{name: endless})
				var list struct{ Items []state }
				if err != nil || a.status != http.StatusAccepted || json.Unmarshal(a.body, &list) != nil || len(list.Items) != 1 {
					t.Errorf("an upload of the flood: %v %s", err, a)
					return
				}
				for d := list.Items[0]; d.Status == "queued" || d.Status == "processing"; {
					if !pauseFor(ctx, 20*time.Millisecond) {
						return
					}
					if a, err := c.do(ctx, "GET", "/v1/knowledge-bases/"+flood+"/documents/"+d.ID, nil); err != nil || a.decode(&d) != nil {
						t.Errorf("a document of the flood: %v %s", err, a)
						return
					}
				}
			}
		})
	}
	made := func(kind deliverable.Kind, markdown string) []byte {
		f, err := deliverable.Render(ctx, kind, markdown, time.Unix(1_800_000_000, 0))
		if err != nil {
			t.Fatal(err)
		}
		return f.Content
	}
	mine := quiet.makes(t, ctx, "/v1/knowledge-bases", object{"name": "Quiet"})
	real := map[string]struct {
		content []byte
		word    string
	}{
		"refunds.pdf":   {sampleOfPDF(t, "aes-256-packed.pdf"), "refunds"},
		"returns.docx":  {word(t, "<w:p><w:r><w:t>Parcels may be returned within 30 days.</w:t></w:r></w:p>"), "parcels"},
		"plan.pptx":     {made(deliverable.PPTX, "# Plan\n\n- open a warehouse\n"), "warehouse"},
		"articles.xlsx": {made(deliverable.XLSX, "| Article | Price |\n|---|---|\n| Umbrella | 12 |\n"), "umbrella"},
	}
	files = map[string][]byte{}
	for name, r := range real {
		files[name] = r.content
	}
	if a, err := putDocuments(ctx, quiet, mine, files); err != nil || a.status != http.StatusAccepted {
		t.Fatal(err, a)
	}
	for name, d := range quiet.ended(t, ctx, mine, len(real)) {
		if d.Status != "ready" {
			t.Errorf("%s is %s: %s", name, d.Status, d.why())
			continue
		}
		var hits struct {
			Items []struct {
				Name string `json:"document_name"`
			}
		}
		if quiet.ask(t, ctx, 200, "POST", "/v1/knowledge-bases/"+mine+"/search", object{"query": real[name].word}, &hits); len(hits.Items) != 1 || hits.Items[0].Name != name {
			t.Errorf("%s is not found beside the flood: %+v", name, hits)
		}
	}
	close(stop)
	uploads.Wait()
	all := c.ended(t, ctx, base, len(rows))
	for _, row := range rows {
		switch d := all[row.name]; {
		case row.reason == tooLarge && d.Status == "failed" && strings.HasPrefix(d.why(), "reading the file needed more than "):
			// The reader was ended before it came so far: that depends on when the node looks at its memory.
		case row.reason == "" && (d.Status != "ready" || d.Error != nil || d.Kind != row.kind):
			t.Errorf("%s is %s, %s: %s", row.name, d.Status, d.Kind, d.why())
		case row.reason != "" && (d.Status != "failed" || d.why() != row.reason):
			t.Errorf("%s is %s: %q, want %q", row.name, d.Status, d.why(), row.reason)
		}
	}
	for name, d := range c.ended(t, ctx, flood, 2) {
		if d.Status != "failed" || d.why() != rows[0].reason {
			t.Errorf("%s of the flood is %s: %s", name, d.Status, d.why())
		}
	}
	var hits struct{ Items []struct{ Text string } }
	c.ask(t, ctx, 200, "POST", "/v1/knowledge-bases/"+base+"/search", object{"query": "shoes scriptcanary attributecanary stylecanary", "top_k": 50}, &hits)
	if len(hits.Items) != 1 || strings.TrimSpace(hits.Items[0].Text) != "Shoes." {
		t.Errorf("%+v", hits)
	}
	grown := n.peak(t) - before
	t.Logf("the node took %d MiB more than the %d MiB at its start", grown, before)
	if grown > 64 {
		t.Errorf("the node took %d MiB for documents that are read in processes of their own", grown)
	}
}
