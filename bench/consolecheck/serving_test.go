package consolecheck

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

func (s *service) fetch(t *testing.T, path string, fields ...string) (*http.Response, string) {
	t.Helper()
	q, err := http.NewRequest("GET", s.url()+path, nil)
	must(t, err)
	for i := 0; i < len(fields); i += 2 {
		q.Header.Set(fields[i], fields[i+1])
	}
	res, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(q)
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(t, err)
	return res, string(b)
}

var named = regexp.MustCompile(`[a-zA-Z0-9_.-]+-[A-Z0-9]{8}\.(js|css|txt)`)

// Section 1: sizes of what the pages need, compressed.
func TestTheConsoleIsSmall(t *testing.T) {
	t.Parallel()
	const limitScripts, limitStyle, limitAll = 120_000, 20_000, 600_000
	res, shell := shared.fetch(t, "/console/")
	if res.StatusCode != 200 {
		t.Fatalf("the binary has no console: %d (make build, with npm)", res.StatusCode)
	}
	// All parts are found through the parts that name them.
	sizes, texts := map[string]int{}, map[string]string{}
	for queue := named.FindAllString(shell, -1); len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		if _, seen := sizes[name]; seen {
			continue
		}
		_, text := shared.fetch(t, "/console/assets/"+name)
		res, packed := shared.fetch(t, "/console/assets/"+name, "Accept-Encoding", "gzip")
		if res.StatusCode != 200 || res.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" {
			t.Errorf("%s: %d %v", name, res.StatusCode, res.Header)
		}
		sizes[name], texts[name] = len(packed), text
		if strings.HasSuffix(name, ".js") {
			queue = append(queue, named.FindAllString(text, -1)...)
		}
	}
	all, scripts, style := 0, 0, 0
	for name, n := range sizes {
		all += n
		switch {
		case strings.HasSuffix(name, ".css"):
			style += n
		case strings.HasSuffix(name, ".js") && !lazy(name):
			scripts += n
		}
	}
	t.Logf("scripts %d, style %d, all %d: %v", scripts, style, all, sizes)
	if scripts > limitScripts || style > limitStyle || all > limitAll {
		t.Errorf("scripts %d of %d, style %d of %d, all %d of %d", scripts, limitScripts, style, limitStyle, all, limitAll)
	}
	if scripts < 20_000 {
		t.Errorf("only %d bytes of scripts: the check is void", scripts)
	}
	for name, text := range texts {
		if !strings.HasSuffix(name, ".js") {
			continue
		}
		for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "eval(", "new Function"} {
			// The library itself knows dangerouslySetInnerHTML, which no page uses.
			if n := strings.Count(text, sink); n > 0 && !(sink == "innerHTML" && strings.Contains(text, "__html")) {
				t.Errorf("%s holds %s", name, sink)
			}
		}
	}
}

// lazy is whether a part is loaded by other pages than Home, Approvals, Runs and a run only.
func lazy(name string) bool {
	for _, page := range []string{"agents-", "tools-", "policies-", "webhooks-", "triggers-", "settings-", "audit-", "usage-", "playground-", "workflows-", "knowledge-", "skills-", "embed-", "end-users-", "api-", "editor-", "graph-", "codemirror-", "precommit-"} {
		if strings.HasPrefix(name, page) {
			return true
		}
	}
	return false
}

// Section 1: the shell is one file for every path, known by its ETag.
func TestTheShellIsCached(t *testing.T) {
	t.Parallel()
	res, first := shared.fetch(t, "/console/")
	for _, path := range []string{"/console", "/console/approvals/x?tab=decided", "/console/none/of/this"} {
		if other, text := shared.fetch(t, path); text != first || other.Header.Get("ETag") != res.Header.Get("ETag") || other.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %v", path, other.Header)
		}
	}
	if known, text := shared.fetch(t, "/console/runs", "If-None-Match", res.Header.Get("ETag")); known.StatusCode != 304 || text != "" {
		t.Errorf("known: %d", known.StatusCode)
	}
	if unknown, text := shared.fetch(t, "/console/assets/main-AAAAAAAA.js"); unknown.StatusCode != 404 || strings.Contains(text, "<html") {
		t.Errorf("an unknown part: %d %.80s", unknown.StatusCode, text)
	}
	if res.Header.Get("Set-Cookie") != "" || strings.Contains(first, "<style") || strings.Contains(first, "style=") {
		t.Errorf("%v %s", res.Header, first)
	}
}
