package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// Each metric that a table of the operator guide marks with an alert has a row that says what to do.
func TestTheGuideExplainsTheAlerts(t *testing.T) {
	guide := read(t, "docs/operator-guide.md")
	_, table, _ := strings.Cut(guide, "\n### Alerts\n")
	if table, _, _ = strings.Cut(table, "\n### "); table == "" {
		t.Fatal("the operator guide has no section of alerts")
	}
	marked := regexp.MustCompile(`(?m)^\| (`+"`svc_.*"+`\*\*alert.*)$`).FindAllString(guide, -1)
	if len(marked) < 10 {
		t.Errorf("only %d metrics with an alert found: the check is void", len(marked))
	}
	for _, row := range marked {
		name := regexp.MustCompile("`svc_[a-z_]+`").FindString(row)
		if !regexp.MustCompile(`(?m)^\| ` + name + ` [^|]*\| \S[^|]* \| \S[^|]* \|$`).MatchString(table) {
			t.Errorf("the operator guide marks %s with an alert, and Alerts does not say what to do", name)
		}
	}
}

// The binary of make build needs no library of the machine on which it runs, and the proxies of the
// documents are the one in deploy/.
func TestTheGuideSaysWhatIsBuiltAndDeployed(t *testing.T) {
	if !regexp.MustCompile(`(?m)^build:.*\n\tCGO_ENABLED=0 \$\(GO\) build `).MatchString(read(t, "Makefile")) {
		t.Error("make build does not say CGO_ENABLED=0: the operator guide calls bin/svc static")
	}
	listen := regexp.MustCompile(`(?m)^\s*listen .*ssl.*$`)
	guide, file := listen.FindString(read(t, "docs/operator-guide.md")), listen.FindString(read(t, "deploy/nginx.conf"))
	if strings.TrimSpace(guide) != strings.TrimSpace(file) || file == "" {
		t.Errorf("docs/operator-guide.md has %q, deploy/nginx.conf %q", guide, file)
	}
}

// errorMessages returns the messages that a file logs at error, with their positions.
func errorMessages(f file) map[string]token.Pos {
	// atError reports whether an expression begins an event at error, or at a level of a library's own.
	atError := func(n ast.Node) (is bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			on := ""
			switch x := sel.X.(type) {
			case *ast.Ident:
				on = x.Name
			case *ast.SelectorExpr:
				on = x.Sel.Name
			}
			is = is || strings.EqualFold(on, "log") && (sel.Sel.Name == "Error" || sel.Sel.Name == "WithLevel")
			return true
		})
		return is
	}
	out := map[string]token.Pos{}
	for _, decl := range f.ast.Decls {
		events := map[string]bool{} // variables of this function that may hold such an event
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if id, ok := n.Lhs[0].(*ast.Ident); ok && atError(n.Rhs[0]) {
					events[id.Name] = true
				}
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || sel.Sel.Name != "Msg" || len(n.Args) != 1 {
					return true
				}
				found := atError(sel.X)
				ast.Inspect(sel.X, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					found = found || ok && events[id.Name]
					return true
				})
				if lit, ok := n.Args[0].(*ast.BasicLit); ok && found {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						out[text] = n.Pos()
					}
				}
			}
			return true
		})
	}
	return out
}

// Each message at error needs an operator: the operator guide says of each what it means and what to do, and
// of no other one.
func TestTheGuideExplainsTheMessagesAtError(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "docs/operator-guide.md"), "\n### Messages at error\n")
	table, _, ok := strings.Cut(table, "\n## ")
	if !ok {
		t.Fatal("the operator guide has no section of messages at error")
	}
	explained := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (`+"`[^|]*`"+`) \| \S[^|]* \| \S[^|]* \|$`).FindAllStringSubmatch(table, -1) {
		for _, message := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			explained[message[1]] = true
		}
	}
	logged := map[string]bool{}
	for _, f := range files {
		if f.test || forTests(f.dir) {
			continue
		}
		for message, at := range errorMessages(f) {
			logged[message] = true
			if !explained[message] {
				t.Errorf("%s: %q is logged at error, and the operator guide does not say what to do (Messages at error)", fset.Position(at), message)
			}
		}
	}
	for message := range explained {
		if !logged[message] {
			t.Errorf("the operator guide explains %q, which is not logged at error", message)
		}
	}
	if len(logged) < 30 {
		t.Errorf("only %d messages at error found: the check is void", len(logged))
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
