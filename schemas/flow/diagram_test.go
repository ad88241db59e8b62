package flow

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMermaid(t *testing.T) {
	got := Mermaid(plan(t, string(full(t))).Definition())
	const golden = "testdata/full.mmd"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || got != string(want) {
		t.Errorf("got\n%s\nwant\n%s\n%v", got, want, err)
	}
}

// Nothing of a definition becomes syntax of the diagram, or HTML of the page that shows it.
func TestMermaidIsSafe(t *testing.T) {
	d := &Definition{Nodes: []Node{{ID: "a", Type: Gate, Title: "x\"]\nclick n0 \"javascript:alert(1)\" <script> `#35;` " + strings.Repeat("long ", 100)}, {ID: "b", Type: "other"}},
		Edges: []Edge{{From: "a", To: "b", When: `x == "|"`}, {From: "a", To: "nobody"}}}
	got := Mermaid(d)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 4 || len(got) > 600 {
		t.Errorf("%d lines, %d bytes:\n%s", len(lines), len(got), got)
	}
	for _, bad := range []string{"<script", `"javascript`, `"|"|"`, "`"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q is in\n%s", bad, got)
		}
	}
}
