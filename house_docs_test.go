package house

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// read returns the text of a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// documents returns the paths of the README and of all other documents.
func documents(t *testing.T) []string {
	t.Helper()
	paths := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/adr/*.md", "bench/*.md", "deploy/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// The README is short, and documents link only to files that exist.
func TestDocumentsLinkToFiles(t *testing.T) {
	if n := len(strings.Fields(read(t, "README.md"))); n > 1200 {
		t.Errorf("README.md has %d words, more than 1,200", n)
	}
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)\s]*)?\)`)
	checked := 0
	for _, path := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			}
		}
	}
	if checked < 40 {
		t.Errorf("only %d links found: the check is void", checked)
	}
}

// Each decision has a number, a status and a row in the index.
func TestDecisionsHaveAStatusAndARow(t *testing.T) {
	index := read(t, "docs/adr/README.md")
	found, err := filepath.Glob("docs/adr/[0-9]*.md")
	if err != nil {
		t.Fatal(err)
	}
	status := regexp.MustCompile(`(?i)\A# \d+\. [^\n]+\n\nStatus: (accepted|superseded by \[?(decision )?\d+|merged into \[?(decision )?\d+)`)
	for _, path := range found {
		if !status.MatchString(read(t, path)) {
			t.Errorf("%s has no line \"Status: accepted.\" (superseded by N, merged into N) below its title", path)
		}
		if !strings.Contains(index, "("+filepath.Base(path)+")") {
			t.Errorf("docs/adr/README.md has no row for %s", path)
		}
	}
	if len(found) < 20 {
		t.Errorf("only %d decisions found: the check is void", len(found))
	}
}

// A comment that names a decision by its file's number names one that is in the index.
func TestCommentsNameDecisionsThatExist(t *testing.T) {
	index := read(t, "docs/adr/README.md")
	number := regexp.MustCompile(`docs/adr/0*(\d+)|\b[dD]ecision (\d+)\b`)
	for _, f := range files {
		for _, group := range f.ast.Comments {
			for _, m := range number.FindAllStringSubmatch(group.Text(), -1) {
				n := m[1] + m[2]
				if !strings.Contains(index, fmt.Sprintf("\n| %s | [", n)) {
					t.Errorf("%s names decision %s, which has no file in docs/adr", f.path, n)
				}
			}
		}
	}
}

// Comments of the product, and those of black-box tests, name what they mean (style.md, Plain
// English). Other tests are not checked yet.
func TestCommentsArePlain(t *testing.T) {
	riddle := regexp.MustCompile(`\b([Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever|[Ww]homever|[Ww]hosever|is to be|are to be|comes to be)\b`)
	seen := 0
	for _, f := range files {
		if f.test && f.dir != "cmd/svc/blackbox" {
			continue
		}
		seen++
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if m := riddle.FindString(c.Text); m != "" && !ast.IsGenerated(f.ast) {
					t.Errorf("%s says %q: name what is meant", fset.Position(c.Pos()), m)
				}
			}
		}
	}
	if seen < 200 {
		t.Errorf("only %d files were read", seen)
	}
}

// Documents name the caller, the node or the row. These words hide it, or have a
// shorter common form.
func TestDocumentsArePlain(t *testing.T) {
	riddle := regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|whoever|whomever|whom|whosever|is to be|comes to be|under way)\b`)
	code := regexp.MustCompile("(?s)```.*?\n```|`[^`\n]*`")
	for _, path := range documents(t) {
		text := code.ReplaceAllStringFunc(read(t, path), func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
		for i, line := range strings.Split(text, "\n") {
			if m := riddle.FindString(line); m != "" {
				t.Errorf("%s:%d says %q: name what is meant", path, i+1, m)
			}
		}
	}
}
