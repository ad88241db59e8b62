package blackbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hostileQueries are searches that mean nothing, or much work.
var hostileQueries = map[string]string{
	"phrases":            strings.Repeat(`"a b" `, 300),
	"a phrase of 1000":   `"` + strings.Repeat("a ", 990) + `"`,
	"quotes":             strings.Repeat(`"`, 2000),
	"words":              strings.Repeat("a b c d ", 249),
	"letters":            strings.Join(strings.Split(strings.Repeat("abcdefghijklmnopqrstuvwxyz", 30), ""), " "),
	"one long word":      strings.Repeat("a", 2000),
	"wildcards":          strings.Repeat("a* %_ ?* ", 200),
	"an unfinished word": "ab",
	"operators":          strings.Repeat(`a:* & !b | (c <-> d) \ ' '' :A `, 60),
	"injection":          `'); DROP TABLE kb_chunks; --`,
	"trigrams":           strings.Repeat("aaab", 500),
	"identifiers":        strings.Repeat("a-b_c.d/e:f@g'", 140),
	"marks":              "a" + strings.Repeat("\u0301", 600),
	"dense":              strings.Repeat("日本語テキスト", 90),
	"folding":            strings.Repeat("ﷺ", 600), // each is 18 characters, once it is normalised
	"controls":           "a\u0000b\u0001\u200b\u202e",
	"nothing":            "?!.,;",
}

// A tenant's searches cost what they may, whatever they ask: none fails by an internal error, and another tenant's
// searches are answered beside them.
func TestHostileSearches(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ctx := within(t, 2*time.Minute)
	c, quiet := n.tenant("hostile searches"), n.tenant("quiet searches")
	all := strings.Join(strings.Split("abcdefghijklmnopqrstuvwxyz", ""), " ") + " "
	l := c.library(t, ctx, "alphabet.txt", strings.Repeat(all, 2000), "repeats.txt", strings.Repeat("a b ", 20_000), "dense.txt", strings.Repeat("日本語テキスト", 2000))
	mine := quiet.library(t, ctx, "shoes.txt", "Shoes may be returned within 30 days.")
	stop := make(chan struct{})
	var beside sync.WaitGroup
	var answered atomic.Int64
	beside.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			a, err := quiet.do(ctx, "POST", "/v1/knowledge-bases/"+mine.id+"/search", object{"query": "shoes"})
			if err != nil || a.status != 200 && a.status != 429 || a.status == 200 && !bytes.Contains(a.body, []byte("30 days")) {
				t.Errorf("another tenant's search: %v %s", err, a)
			}
			answered.Add(1)
			pauseFor(ctx, 50*time.Millisecond)
		}
	})
	var wg sync.WaitGroup
	var found atomic.Int64
	for name, query := range hostileQueries {
		for range 4 {
			wg.Go(func() {
				a, err := c.do(ctx, "POST", "/v1/knowledge-bases/"+l.id+"/search", object{"query": query, "top_k": 50})
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				checkProblem(t, name, a)
				var list struct{ Items []struct{ Score float64 } }
				switch a.status {
				case 200:
					if err := json.Unmarshal(a.body, &list); err != nil || len(list.Items) > 50 {
						t.Errorf("%s: %v, %d items", name, err, len(list.Items))
					}
					for _, h := range list.Items {
						if h.Score <= 0 || h.Score > 1 {
							t.Errorf("%s: a score of %v", name, h.Score)
						}
					}
					found.Add(int64(len(list.Items)))
				case 400, 429, 503:
				default:
					t.Errorf("%s: %s", name, a)
				}
			})
		}
	}
	wg.Wait()
	close(stop)
	beside.Wait()
	if found.Load() == 0 || answered.Load() < 2 {
		t.Errorf("%d results, %d searches of another tenant: the test is void", found.Load(), answered.Load())
	}
	for name, row := range map[string]struct {
		body   string
		status int
	}{
		"2001 characters": {`{"query":"` + strings.Repeat("a", 2001) + `"}`, 400}, "10,000 words": {`{"query":"` + strings.Repeat("a ", 10_000) + `"}`, 400},
		"invalid UTF-8": {"{\"query\":\"a\xff\xfe\"}", 400}, "a lone surrogate": {`{"query":"a\ud800b"}`, 0}, "NUL": {`{"query":"a\u0000b"}`, 0}, "a list": {`{"query":["a"]}`, 400},
		"top_k 51": {`{"query":"a","top_k":51}`, 400}, "top_k -1": {`{"query":"a","top_k":-1}`, 400}, "top_k 1e99": {`{"query":"a","top_k":1e99}`, 400}, "empty": {`{"query":""}`, 400},
	} {
		a, err := c.do(ctx, "POST", "/v1/knowledge-bases/"+l.id+"/search", row.body)
		if err != nil || a.status != row.status && (row.status != 0 || a.status != 200 && a.status != 400) {
			t.Errorf("%s: %v %.300s", name, err, a)
		}
		checkProblem(t, name, a)
	}
}
