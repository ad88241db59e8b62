package blackbox

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Uploads whose names, types and forms lie: each is refused with a reason, or is a document whose name is what was sent and
// whose kind is that of its content.
func TestHostileUploads(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("hostile uploads")
	ctx := within(t, 2*time.Minute)
	base := c.makes(t, ctx, "/v1/knowledge-bases", object{"name": "Hostile"})
	path := "/v1/knowledge-bases/" + base + "/documents"
	form := func(part string, content string) []byte {
		return []byte("--x\r\n" + part + "\r\n\r\n" + content + "\r\n--x--\r\n")
	}
	file := func(name string) string {
		return `Content-Disposition: form-data; name="file"; filename="` + name + `"`
	}
	const text = "A document that says shoes."
	for name, row := range map[string]struct {
		body   []byte
		kind   string
		status int
		as     string // the document's name
	}{
		"a name of 255":              {form(file(strings.Repeat("n", 251)+".txt"), text), "", 202, strings.Repeat("n", 251) + ".txt"},
		"a name of 256":              {form(file(strings.Repeat("n", 252)+".txt"), text), "", 400, ""},
		"a name of 1 MiB":            {form(file(strings.Repeat("n", 1<<20)), text), "", 400, ""},
		"many headers":               {form(file("a.txt")+strings.Repeat("\r\nX-Y: z", 20_000), text), "", 400, ""},
		"a header of 1 MiB":          {form(file("a.txt")+"\r\nX-Y: "+strings.Repeat("z", 1<<20), text), "", 400, ""},
		"a path":                     {form(file("../../etc/passwd.txt"), text), "", 202, "passwd.txt"},
		"NUL in the name":            {form(file("a\x00b.txt"), text), "", 400, ""},
		"a script in the name":       {form(file("<script>.txt"), text), "", 202, "<script>.txt"},
		"bidi in the name":           {form(file("a\u202egpj.txt"), text), "", 0, ""},
		"a name that is not UTF-8":   {form(file("a\xff.txt"), text), "", 400, ""},
		"a type that lies":           {form(file("lies.txt")+"\r\nContent-Type: application/pdf", text), "", 202, "lies.txt"},
		"a type that is none":        {form(file("none.txt")+"\r\nContent-Type: ;;;=", text), "", 202, "none.txt"},
		"an encoding":                {form(file("encoded.txt")+"\r\nContent-Transfer-Encoding: base64", text), "", 202, "encoded.txt"},
		"another field":              {form(`Content-Disposition: form-data; name="other"`, text), "", 400, ""},
		"no disposition":             {form("X: y", text), "", 400, ""},
		"JSON":                       {[]byte(`{"file":"a"}`), "application/json", 415, ""},
		"no boundary":                {form(file("a.txt"), text), "multipart/form-data", 415, ""},
		"a boundary of 1000":         {form(file("a.txt"), text), "multipart/form-data; boundary=" + strings.Repeat("x", 1000), 415, ""},
		"another boundary":           {form(file("a.txt"), text), "multipart/form-data; boundary=y", 400, ""},
		"an end that does not come":  {[]byte("--x\r\n" + file("a.txt") + "\r\n\r\n" + text), "", 400, ""},
		"nested multipart":           {form(file("nested.txt")+"\r\nContent-Type: multipart/mixed; boundary=y", "--y\r\n\r\n"+text+"\r\n--y--"), "", 202, "nested.txt"},
		"nothing":                    {nil, "", 400, ""},
		"a million parts of nothing": {bytes.Repeat([]byte("--x\r\n\r\n\r\n"), 100_000), "", 400, ""},
	} {
		if row.kind == "" {
			row.kind = "multipart/form-data; boundary=x"
		}
		a, err := c.do(ctx, "POST", path, row.body, "Content-Type", row.kind)
		if err != nil || a.status != row.status && (row.status != 0 || a.status != 202 && a.status != 400) {
			t.Errorf("%s: %v %.300s", name, err, a)
			continue
		}
		checkProblem(t, name, a)
		var list struct{ Items []struct{ ID, Name string } }
		if a.status != 202 {
			continue
		}
		if err := a.decode(&list); err != nil || len(list.Items) != 1 || row.as != "" && list.Items[0].Name != row.as {
			t.Errorf("%s: %v %.300s", name, err, a)
			continue
		}
		eventually(t, ctx, name+" is read", func() bool {
			var d struct {
				Status string
				Kind   string `json:"media_type"`
			}
			c.ask(t, ctx, 200, "GET", path+"/"+list.Items[0].ID, nil, &d)
			if d.Status == "failed" {
				t.Errorf("%s failed", name)
			}
			if d.Status == "ready" && d.Kind != "text/plain" {
				t.Errorf("%s is %s", name, d.Kind)
			}
			return d.Status == "failed" || d.Status == "ready"
		})
	}
	// Many at once: each is accepted whole or refused, and what was accepted is indexed.
	var wg sync.WaitGroup
	var accepted atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			files := map[string][]byte{}
			for j := range 4 {
				files[fmt.Sprintf("%d-%d.txt", i, j)] = []byte(text)
			}
			a, err := putDocuments(ctx, c, base, files)
			switch {
			case err != nil:
				t.Error(err)
			case a.status == 202:
				accepted.Add(4)
			case a.status != 429 && a.status != 503:
				t.Errorf("one of many uploads: %s", a)
			}
		})
	}
	wg.Wait()
	eventually(t, ctx, "all are indexed", func() bool {
		var list struct{ Items []any }
		c.ask(t, ctx, 200, "GET", path+"?status=queued&limit=1", nil, &list)
		left := len(list.Items)
		c.ask(t, ctx, 200, "GET", path+"?status=processing&limit=1", nil, &list)
		return left+len(list.Items) == 0
	})
	if accepted.Load() == 0 {
		t.Error("none of many uploads was accepted: the test is void")
	}
}
