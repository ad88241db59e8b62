package blackbox

import (
	"bytes"
	"context"
	"fmt"
	"mime/multipart"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// putDocuments uploads files of one request into a base.
func putDocuments(ctx context.Context, c *caller, base string, files map[string][]byte) (answer, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, content := range files {
		part, err := w.CreateFormFile("file", name)
		if err != nil {
			return answer{}, err
		}
		if _, err := part.Write(content); err != nil {
			return answer{}, err
		}
	}
	if err := w.Close(); err != nil {
		return answer{}, err
	}
	return c.do(ctx, "POST", "/v1/knowledge-bases/"+base+"/documents", b.Bytes(), "Content-Type", w.FormDataContentType())
}

// documents returns the ids of a base's documents by name.
func (c *caller) documents(t *testing.T, ctx context.Context, base string) map[string]string {
	t.Helper()
	names := map[string]string{}
	for cursor := ""; ; {
		var page struct {
			Items []struct{ ID, Name string }
			Next  *string `json:"next_cursor"`
		}
		c.ask(t, ctx, 200, "GET", "/v1/knowledge-bases/"+base+"/documents?limit=100"+cursor, nil, &page)
		for _, d := range page.Items {
			if names[d.Name] != "" {
				t.Errorf("%s is there twice", d.Name)
			}
			names[d.Name] = d.ID
		}
		if page.Next == nil {
			return names
		}
		cursor = "&cursor=" + *page.Next
	}
}

// Kills at random under uploads of documents: what was acknowledged is there with its content, a
// request is there whole or not at all, a replaced document has the content of one upload, and no
// file is left that no document has.
func TestKilledUnderUploadsOfDocuments(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	n := newNode(t)
	n.start()
	c, other := n.tenant("killed"), n.tenant("replaces")
	var base, again struct{ ID string }
	c.ask(t, ctx, 201, "POST", "/v1/knowledge-bases", object{"name": "Killed"}, &base)
	other.ask(t, ctx, 201, "POST", "/v1/knowledge-bases", object{"name": "Replaces"}, &again)
	const files = 3   // of one request
	var mu sync.Mutex // guards the maps
	sent, acknowledged := map[string][]byte{}, map[string]bool{}
	versions := map[string]int{} // contents of the document that is replaced, by the order of their requests
	newest, last := 0, 0         // acknowledged, sent
	for round := range 2 {
		enough := make(chan struct{})
		var uploads sync.WaitGroup
		done := 0
		for i := range 3 {
			uploads.Go(func() {
				for j := 0; ; j++ {
					request := map[string][]byte{}
					mu.Lock()
					for k := range files {
						name := fmt.Sprintf("%d-%d-%d-%d.txt", round, i, j, k)
						request[name] = noise(byte(round*64+i*16+j), 1<<(8+(i*3+j*5+k)%12))
						sent[name] = request[name]
					}
					mu.Unlock()
					a, err := putDocuments(ctx, c, base.ID, request)
					if err != nil {
						return
					}
					mu.Lock()
					if a.status != 202 {
						t.Errorf("upload: %s", a)
					}
					for name := range request {
						acknowledged[name] = true
					}
					if done++; done == 9 {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		uploads.Go(func() { // one document, replaced by one request after another
			for {
				mu.Lock()
				last++
				mine := last
				content := fmt.Sprint("version ", mine)
				versions[content] = mine
				mu.Unlock()
				if a, err := putDocuments(ctx, other, again.ID, map[string][]byte{"same.txt": []byte(content)}); err != nil || a.status != 202 {
					return
				}
				mu.Lock()
				newest = mine
				mu.Unlock()
			}
		})
		select {
		case <-enough:
		case <-ctx.Done():
			t.Fatal("uploads take too long")
		}
		n.kill()
		uploads.Wait()
		n.start()
	}
	there := c.documents(t, ctx, base.ID)
	for name := range acknowledged {
		if there[name] == "" {
			t.Errorf("%s was acknowledged and is not there", name)
		}
	}
	requests := map[string]int{}
	for name, id := range there {
		requests[name[:len(name)-len("-0.txt")]]++
		if a := c.ask(t, ctx, 200, "GET", "/v1/knowledge-bases/"+base.ID+"/documents/"+id+"/content", nil, nil); !bytes.Equal(a.body, sent[name]) {
			t.Errorf("%s has %d bytes, others than were sent", name, len(a.body))
		}
	}
	for request, n := range requests {
		if n != files {
			t.Errorf("of request %s %d of %d files are there", request, n, files)
		}
	}
	if same := other.documents(t, ctx, again.ID)["same.txt"]; newest > 0 {
		a := other.ask(t, ctx, 200, "GET", "/v1/knowledge-bases/"+again.ID+"/documents/"+same+"/content", nil, nil)
		if v := versions[string(a.body)]; v < newest {
			t.Errorf("the document has %q, version %d was acknowledged", a.body, newest)
		}
	}
	n.longDead(ctx)
	eventually(t, ctx, "what the dead processes left is removed", func() bool {
		kept, err := os.ReadDir(filepath.Join(n.dataDir(), "blobs", "documents", c.Tenant))
		return err == nil && len(kept) == len(there)
	})
	t.Logf("%d documents of %d requests, %d acknowledged, %d versions of another", len(there), len(requests), len(acknowledged), last)
}
