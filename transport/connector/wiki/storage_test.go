package wiki

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// TestStorage: text of macros, code in CDATA, links by title; no parameters.
func TestStorage(t *testing.T) {
	t.Parallel()
	page, err := ToHTML("A & B", `<p>One <strong>two</strong>&nbsp;x</p>
<ac:structured-macro ac:name="code"><ac:parameter ac:name="language">java</ac:parameter><ac:plain-text-body><![CDATA[if (a < b && c) { "canary" }]]></ac:plain-text-body></ac:structured-macro>
<ac:structured-macro ac:name="panel"><ac:parameter ac:name="title">Titled</ac:parameter><ac:rich-text-body><p>Inside</p></ac:rich-text-body></ac:structured-macro>
<ac:link><ri:page ri:content-title="Other page" /></ac:link> after
<ac:task-list><ac:task><ac:task-id>7</ac:task-id><ac:task-status>incomplete</ac:task-status><ac:task-body>Do it</ac:task-body></ac:task></ac:task-list>
<time datetime="2026-11-25" /><table><tr><td colspan="2" style="x">cell</td></tr></table><img src="http://x/" alt="picture"><script>evil()</script>`)
	if err != nil {
		t.Fatal(err)
	}
	got := string(page)
	for _, want := range []string{"<title>A &amp; B</title>", "One <strong>two</strong>", `<pre>if (a &lt; b &amp;&amp; c) { &#34;canary&#34; }</pre>`, "<p>Titled</p>", "<p>Inside</p>", "Other page", "after", "<li>Do it</li>", "2026-11-25", `<td colspan="2">cell</td>`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	for _, not := range []string{"java", "incomplete", "7<", "ac:", "ri:", "evil", "style", "src"} {
		if strings.Contains(got, not) {
			t.Errorf("%s is in %s", not, got)
		}
	}
}

// TestAPageOfOneTag: a tag of a million attributes costs little and is refused; a text of its size is
// too. It runs alone, because it counts what is allocated.
func TestAPageOfOneTag(t *testing.T) {
	var attributes strings.Builder
	for i := range 1 << 20 {
		fmt.Fprintf(&attributes, " a%x", i)
	}
	for name, page := range map[string]string{"attributes": "<p>x</p><p" + attributes.String() + ">", "a name": "<" + strings.Repeat("a", 8<<20) + ">", "a text": strings.Repeat("a ", 4<<20), "a comment": "<!--" + strings.Repeat("a", 8<<20)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ToHTML("T", page)
		runtime.ReadMemStats(&after)
		if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; err != errToken || grown > 200 {
			t.Errorf("%s: %v, %d MiB allocated", name, err, grown)
		}
	}
	page, err := ToHTML("T", "<p"+attributes.String()[:1<<20]+">"+strings.Repeat("text ", 200_000)+"</p>")
	if err != nil || len(page) < 1_000_000 || len(page) > 1_100_000 {
		t.Errorf("%d bytes, %v", len(page), err)
	}
}

// FuzzStorage: any bytes become HTML without scripts.
func FuzzStorage(f *testing.F) {
	f.Add("t", `<ac:plain-text-body><![CDATA[x]]></ac:plain-text-body><ac:parameter ac:name="x">`)
	f.Add("</title><script>", `<ac:task-id><ac:task-id></ac:task-id><script>x</script><plaintext>`)
	f.Fuzz(func(t *testing.T, title, body string) {
		page, err := ToHTML(title, body)
		if err != nil {
			return // what is refused has no scripts
		}
		z := html.NewTokenizer(bytes.NewReader(page))
		for z.Next() != html.ErrorToken {
			if name := z.Token(); (name.Type == html.StartTagToken) && name.Data == "script" {
				t.Fatalf("a script from %q", body)
			}
		}
	})
}
