package consolecheck

import (
	"regexp"
	"strings"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// Section 1, editor: it loads lazily, and completes names and values by the schema of the service.
func TestTheEditorHelps(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	id := shared.workflow(t, "Complaints", complaints(agent))
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/workflows/"+id)
	visible(t, p.node("big, condition"))
	if n := v.loaded("codemirror-"); n != 0 {
		t.Errorf("the graph loaded the editor %d times", n)
	}
	must(t, p.byRole("tab", "Definition").Click())
	box := p.box("Definition")
	visible(t, box)
	if n := v.loaded("codemirror-"); n != 1 {
		t.Errorf("the editor was loaded %d times", n)
	}
	rewrite(t, box, `{"nodes": [{"id": "a", "type": "agent", }, {"id": "b", "type": "condition"}], "edges": [{"from": "b", }]}`)
	list := p.byRole("listbox", "Completions")
	offers := func(want ...string) {
		t.Helper()
		visible(t, list)
		for _, w := range want {
			visible(t, list.GetByRole("option", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^" + regexp.QuoteMeta(w))}))
		}
	}
	// The type of the node decides what else it has; a chosen agent is its id.
	p.cursor(box, `"agent", `)
	must(t, p.Keyboard().Type(`"`))
	offers("agent_id", "input")
	gone(t, list.GetByRole("option", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^seconds")}))
	p.accessible("completion")
	take := func(what string) {
		t.Helper()
		must(t, list.GetByRole("option", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^" + what)}).Click())
	}
	take("agent_id")
	contains(t, box, `"agent_id": ""`)
	offers(name)
	must(t, p.Keyboard().Type(name))
	take(regexp.QuoteMeta(name) + `\s*agent$`)
	contains(t, box, `"agent_id": "`+agent+`"`)
	// The ends of edges are nodes of the same text.
	p.cursor(box, `"from": "b", `)
	must(t, p.Keyboard().Type(`"to": "`))
	offers("a", "b")
	p.press("Escape")
	gone(t, list)
	if t.Failed() {
		t.Log(written(t, box))
	}
}

// cursor puts the cursor behind a text of an editor.
func (p *tab) cursor(box playwright.Locator, text string) {
	p.t.Helper()
	at := strings.Index(written(p.t, box), text)
	if at < 0 {
		p.t.Fatalf("%s is not in %s", text, written(p.t, box))
	}
	must(p.t, box.Click())
	p.press("Control+Home")
	for range at + len(text) {
		p.press("ArrowRight")
	}
}

// Section 8: all by keyboard. Tab indents in the editor; Esc, then Tab leaves it, and single keys do nothing in it.
func TestTheEditorIsNoTrap(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	id := shared.workflow(t, "Complaints", complaints(agent))
	p := visit(t, shared, look{}).as("admin", "/console/workflows/"+id+"?tab=definition")
	box := p.box("Definition")
	visible(t, box)
	must(t, box.Focus())
	p.press("Control+Home", "Tab")
	must(t, expect.Locator(box).ToBeFocused())
	if text := written(t, box); !strings.HasPrefix(text, "  {") {
		t.Errorf("Tab does not indent: %.20q", text)
	}
	p.press("Shift+Tab")
	if text := written(t, box); !strings.HasPrefix(text, "{") {
		t.Errorf("Shift+Tab does not take it back: %.20q", text)
	}
	p.press("Escape", "Tab")
	must(t, expect.Locator(box).Not().ToBeFocused())
	must(t, expect.Locator(p.Locator(":focus")).ToHaveRole("button"))
	p.press("Shift+Tab")
	must(t, expect.Locator(box).ToBeFocused())
	p.press("Escape", "Shift+Tab")
	must(t, expect.Locator(box).Not().ToBeFocused())
	// Letters and / are text here, and Ctrl+Z takes them back.
	must(t, box.Focus())
	was := written(t, box)
	p.press("Control+Home")
	must(t, p.Keyboard().Type("/gh?"))
	gone(t, p.GetByRole("dialog"))
	if text := written(t, box); !strings.HasPrefix(text, "/gh?{") {
		t.Errorf("typed: %.20q", text)
	}
	p.heading("Complaints")
	for range 8 {
		if written(t, box) == was {
			break
		}
		p.press("Control+z")
	}
	if text := written(t, box); text != was {
		t.Errorf("undone: %q", text)
	}
	// Parts fold, by key and by their mark.
	p.press("Control+Home", "ArrowDown", "End", "Control+Shift+{")
	must(t, expect.Locator(box).Not().ToContainText(`"to": "approve"`))
	p.press("Control+Shift+}")
	contains(t, box, `"to": "approve"`)
	p.accessible("the editor")
}

// Characters that cannot be seen show their code in the editor; the text keeps them.
func TestHostileTextsInTheEditor(t *testing.T) {
	t.Parallel()
	agent, _ := shared.policed(t)
	id := shared.workflow(t, "Complaints", object{"nodes": []object{{"id": "ask", "type": "agent", "agent_id": agent, "input": object{"text": "<img src=x onerror=alert(1)> \u202egnp\u200b"}}}, "edges": []object{}})
	p := visit(t, shared, look{}).as("admin", "/console/workflows/"+id+"?tab=definition")
	box := p.box("Definition")
	contains(t, box, "<img src=x onerror=alert(1)> U+202EgnpU+200B")
	must(t, expect.Locator(box.Locator(".cm-hidden")).ToHaveCount(2))
	gone(t, box.Locator("img[onerror]"))
	p.accessible("hidden characters in the editor")
}

// A large text is scrolled, its problems are found by their lines, and a part that cannot be loaded leaves a plain field.
func TestTheEditorOfALargeDefinition(t *testing.T) {
	t.Parallel()
	var nodes []object
	for range 200 {
		nodes = append(nodes, object{"id": "n" + strings.Repeat("x", len(nodes)%40) + string(rune('a'+len(nodes)%26)) + string(rune('a'+len(nodes)/26)), "type": "delay", "seconds": 1})
	}
	id := shared.workflow(t, "Large", object{"nodes": nodes, "edges": []object{}})
	v := visit(t, shared, look{})
	p := v.as("admin", "/console/workflows/"+id+"?tab=definition")
	box := p.box("Definition")
	visible(t, box)
	count, err := box.Evaluate(`e => e.querySelectorAll(".cm-line").length`, nil)
	must(t, err)
	if n := count.(int); n > 400 {
		t.Errorf("%d lines are drawn", n)
	}
	// All of it is replaced, also what is not drawn.
	rewrite(t, box, `{"nodes": [], "edges": []}`)
	if text := written(t, box); text != `{"nodes": [], "edges": []}` {
		t.Errorf("after a change of all: %.200q", text)
	}
	contains(t, p.byRole("list", "Problems"), "at least one node")
	must(t, p.button("Undo changes").Click())
	contains(t, box, `"seconds": 1`)
	gone(t, p.byRole("list", "Problems"))

	q := visit(t, shared, look{}).as("admin", "/console/")
	q.heading("Home")
	q.missing("codemirror", 1000)
	q.goTo("/console/workflows/" + id + "?tab=definition")
	plain := q.box("Definition")
	must(t, expect.Locator(plain).ToHaveValue(regexp.MustCompile(`"seconds": 1`)))
	must(t, plain.Fill(`{"nodes": []}`))
	contains(t, q.byRole("list", "Problems"), "at least one node")
}
