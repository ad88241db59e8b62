package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/api"
)

// open-parts.md, Changes, Operation: full ids, short ids of at least 8 digits of
// the end, and slugs. Nothing else names anything.
func TestPick(t *testing.T) {
	t.Parallel()
	all := []cli.Named{
		{ID: "0193b111-0000-7000-8000-0000abcdef01", Slug: "helper", Label: "helper"},
		{ID: "0193b111-0000-7000-8000-1111abcdef01", Slug: "deadbeef", Label: "deadbeef"},
		{ID: "0193b122-0000-7000-8000-0000deadbeef", Slug: "0", Label: "0"},
		{ID: "0193b133-0000-7000-8000-000000000000", Label: "last"},
	}
	for _, row := range []struct {
		text     string
		slugs    bool
		want     int // -1 for an error
		code     string
		mentions []string
	}{
		{"00000000", false, 3, "", nil},
		{"8000-000000000000", false, 3, "", nil},
		{"0193B133000070008000000000000000", false, 3, "", nil},
		{"1111ABCDEF01", false, 1, "", nil},
		{"abcdef01", false, -1, "AMBIGUOUS", []string{all[0].ID, all[1].ID}},
		{"0", false, -1, "TOO_SHORT", []string{"00000000  last"}},
		{"0000000", false, -1, "TOO_SHORT", []string{"last 8 digits", "00000000  last"}},
		{"", false, -1, "NOT_FOUND", nil},
		{"-", false, -1, "NOT_FOUND", nil},
		{"--------", false, -1, "NOT_FOUND", nil},
		{"0193b111", false, -1, "NOT_FOUND", []string{"beginning", "abcdef01  helper", "abcdef01  deadbeef"}},
		{"0193b122-0000-7000-8000", false, -1, "NOT_FOUND", []string{"deadbeef  0"}},
		{"00001111abcdef0", false, -1, "NOT_FOUND", nil},
		{"helper", false, -1, "NOT_FOUND", []string{"full id"}},
		{"helper", true, 0, "", nil},
		{"HELPER", true, -1, "NOT_FOUND", []string{`did you mean "helper"?`}},
		{"helpr", true, -1, "NOT_FOUND", []string{`did you mean "helper"?`}},
		{"0", true, 2, "", nil},
		{"deadbeef", true, -1, "AMBIGUOUS", []string{all[1].ID, all[2].ID}}, // one's slug is another's id
		{"0000deadbeef", true, 2, "", nil},
		{"", true, -1, "NOT_FOUND", nil},
		{"01", true, -1, "NOT_FOUND", []string{"last 8 digits", "abcdef01  helper"}},
		{"0193b133", true, -1, "NOT_FOUND", []string{"00000000  last"}},
	} {
		got, err := cli.Pick("thing", row.text, row.slugs, all)
		var why *cli.LookupError
		switch {
		case row.want >= 0:
			if err != nil || got != all[row.want].ID {
				t.Errorf("%q: %s %v", row.text, got, err)
			}
		case got != "" || !errors.As(err, &why) || why.Code != row.code:
			t.Errorf("%q: %s %v, want %s", row.text, got, err, row.code)
		default:
			for _, m := range row.mentions {
				if !strings.Contains(err.Error(), m) {
					t.Errorf("%q: %v, want %q in it", row.text, err, m)
				}
			}
		}
	}
}

// bigList serves n things in pages, and a search for the ends of their ids unless kind is empty.
func bigList(t *testing.T, n int, kind api.FoundKind) (c *Client, idOf func(i int) string, lists *atomic.Int32) {
	idOf = func(i int) string { return fmt.Sprintf("0193b111-0000-7000-8000-0000%08x", i) }
	limited := false
	lists = new(atomic.Int32)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !limited { // the tenant's bucket is empty for a moment
			limited = true
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"status":429,"code":"RATE_LIMITED","retry_after":0.001}`)
			return
		}
		if r.URL.Path == "/v1/search" {
			items := []object{}
			for i := range n {
				if q := r.URL.Query().Get("q"); strings.HasSuffix(strings.ReplaceAll(idOf(i), "-", ""), q) {
					items = append(items, object{"kind": "thread", "id": "0193b222-0000-7000-8000-0000" + q[max(len(q)-8, 0):]}, object{"kind": kind, "id": idOf(i), "title": "T"})
				}
			}
			if kind == "" {
				w.WriteHeader(http.StatusNotFound)
			} else if err := json.NewEncoder(w).Encode(object{"items": items}); err != nil {
				t.Error(err)
			}
			return
		}
		lists.Add(1)
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		size, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		items := []object{}
		for i := from; i < min(from+size, n); i++ {
			items = append(items, object{"id": idOf(i), "slug": "s" + strconv.Itoa(i)})
		}
		var next any
		if from+size < n {
			next = strconv.Itoa(from + size)
		}
		if err := json.NewEncoder(w).Encode(object{"items": items, "next_cursor": next}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	return &Client{Base: srv.URL, Key: "svc_test", Tenant: "tenant", HTTP: &http.Client{}}, idOf, lists
}

func TestFindReadsAllPages(t *testing.T) {
	t.Parallel()
	c, idOf, _ := bigList(t, 350, "")
	for _, i := range []int{0, 99, 100, 349} {
		if got, err := c.find(t.Context(), approvalKind, fmt.Sprintf("%08x", i)); err != nil || got != idOf(i) {
			t.Errorf("%d: %s %v", i, got, err)
		}
	}
	if got, err := c.find(t.Context(), agentKind, "s349"); err != nil || got != idOf(349) {
		t.Errorf("a slug: %s %v", got, err)
	}
	if got, err := c.findAll(t.Context(), approvalKind, []string{idOf(7), "00000003", strings.ToUpper(idOf(7)), "00000007"}); err != nil || !slices.Equal(got, []string{idOf(7), idOf(3)}) {
		t.Errorf("several: %v %v", got, err)
	}
}

// What was not looked through may end alike.
func TestAShortIDOfAPartIsNotTrusted(t *testing.T) {
	t.Parallel()
	c, idOf, _ := bigList(t, maxLooked+1, "")
	if got, err := c.find(t.Context(), runKind, "00000005"); err == nil || !strings.Contains(err.Error(), "give the full id") || !strings.Contains(err.Error(), idOf(5)) {
		t.Errorf("%s %v", got, err)
	}
	if got, err := c.find(t.Context(), agentKind, "s5"); err != nil || got != idOf(5) { // slugs are unique
		t.Errorf("a slug: %s %v", got, err)
	}
}

// Of kinds with many things a search finds one by its short id, however many there are.
func TestAShortIDIsSearchedFor(t *testing.T) {
	t.Parallel()
	c, idOf, lists := bigList(t, maxLooked+1, api.FoundRun)
	if got, err := c.findAll(t.Context(), runKind, []string{"00000005", "8000-000000002710"}); err != nil || !slices.Equal(got, []string{idOf(5), idOf(10_000)}) || lists.Load() != 0 {
		t.Errorf("%v %v, %d lists", got, err, lists.Load())
	}
	for text, says := range map[string]string{"ffffffff": `no run's id ends with "ffffffff"`, "0193b111": "the beginning of an id names nothing", "05": "too short"} {
		before := lists.Load()
		if got, err := c.find(t.Context(), runKind, text); err == nil || !strings.Contains(err.Error(), says) || lists.Load() != before+1 {
			t.Errorf("%s: %s %v, %d lists", text, got, err, lists.Load()-before)
		}
	}
}
