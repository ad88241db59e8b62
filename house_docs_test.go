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

// The guide lists every action of the audit log, and no other.
func TestTheGuideListsTheActionsOfTheAuditLog(t *testing.T) {
	_, chapter, _ := strings.Cut(read(t, "docs/api-guide.md"), "| `target.kind` | `action` |\n")
	chapter, _, _ = strings.Cut(chapter, "\n\n")
	listed, kinds := map[string]bool{}, map[string]bool{}
	for _, line := range strings.Split(chapter, "\n") {
		for i, m := range regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(line, -1) {
			if i == 0 {
				kinds[m[1]] = true
			} else {
				listed[m[1]] = true
			}
		}
	}
	written := map[string]bool{}
	// The code puts these together of a kind or a state and a verb.
	for _, a := range []string{"webhook.delete", "webhook.listener.delete", "browser_skill.run.prepared", "browser_skill.run.succeeded", "browser_skill.run.rejected", "browser_skill.run.failed"} {
		written[a] = true
	}
	action := regexp.MustCompile(`(?:(?:[aA]udit|putPolicy|noted)\([^\n]*?|(?:action|deletes) *:?= *)"([a-z_]+(?:\.[a-z_]+)+)"`)
	for _, f := range files {
		if f.test || !strings.HasPrefix(f.dir, "actors/") && !strings.HasPrefix(f.dir, "persistence/") && !strings.HasPrefix(f.dir, "transport/") {
			continue
		}
		for _, m := range action.FindAllStringSubmatch(read(t, f.path), -1) {
			written[m[1]] = written[m[1]] || !kinds[m[1]]
		}
	}
	for a := range written {
		if written[a] && !listed[a] {
			t.Errorf("docs/api-guide.md does not list %s", a)
		}
	}
	for a := range listed {
		if !written[a] {
			t.Errorf("docs/api-guide.md lists %s, which no code writes", a)
		}
	}
	if len(listed) < 80 || len(kinds) < 20 {
		t.Errorf("only %d actions of %d kinds were found: the check is void", len(listed), len(kinds))
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
