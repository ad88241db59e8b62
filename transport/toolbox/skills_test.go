package toolbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/skill"
	"agentsvc/schemas/tool"
)

const claim = `{"start_url":"https://a.example/","target_hosts":["a.example"],"params":[{"name":"n","type":"integer","required":true},{"name":"unbound","type":"string"}],
	"steps":[{"id":"n","kind":"type","target":{"selector":"#n"},"param":"n"},{"id":"send","kind":"click","target":{"selector":"#send"}}],"commit_step_id":"send"}`

// skill makes a skill with this approval and grants it to the agent by a new version, which the
// caller then has.
func (w *searched) skill(slug, approval string, ops ...api.SkillGrantOp) id.SkillID {
	w.Helper()
	parsed, err := skill.Parse(skill.Input{Definition: json.RawMessage(claim), Policy: json.RawMessage(`{"approval":"` + approval + `","required_approvals":2}`), OwnerAttested: true})
	if err != nil {
		w.Fatal(err)
	}
	var made *api.Skill
	err = w.box.Tables.Change(w.Context(), store.By{Tenant: w.caller.Tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		if made, err = tx.CreateSkill(ctx, &api.SkillCreate{Name: slug, Slug: &slug, Description: "Files a claim."}, parsed); err != nil {
			return nil, err
		}
		_, err = tx.GrantSkill(ctx, made.ID, &api.SkillGrantCreate{AgentID: &w.caller.Agent, Ops: ops})
		return nil, err
	})
	if err != nil {
		w.Fatal(err)
	}
	w.caller.Manifest.Tools.BrowserSkills = append(w.caller.Manifest.Tools.BrowserSkills, agent.BrowserSkillUse{Skill: slug, Allow: []string{"run", "dry_run"}})
	return made.ID
}

func (w *searched) offered() string {
	w.Helper()
	offers, err := w.box.Offer(w.Context(), w.caller)
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, o := range offers {
		names = append(names, strings.TrimPrefix(o.Name, skillPrefix))
	}
	return strings.Join(names, " ")
}

// service.md, Generated agent tools: run and dry_run are offered as granted, a skill that is
// disabled, on another org node or not granted is not, and dry_run_only offers no run.
func TestSkillsAreOffered(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.caller.Manifest = &agent.Manifest{}
	book := w.skill("book", "at_commit_point", "run", "dry_run")
	w.skill("try", "dry_run_only", "*")
	w.skill("part", "always_before_run", "dry_run")
	if got := w.offered(); got != "book.dry_run book.run part.dry_run try.dry_run" {
		t.Errorf("offered: %s", got)
	}
	plan, err := w.box.Plan(t.Context(), w.caller, 1, []model.Call{
		model.NewCall("a", "browser_skill:book.run", `{"reason":"asked","n":"42"}`),
		model.NewCall("b", "browser_skill:book.dry_run", `{"n":7}`),
		model.NewCall("c", "browser_skill:book.run", `{"n":1}`),
		model.NewCall("d", "browser_skill:book.run", `{"n":1,"unbound":"x","reason":"r"}`),
		model.NewCall("e", "browser_skill:try.run", `{"n":1,"reason":"r"}`),
		model.NewCall("f", "browser_skill:book.dry_run", `{"n":"many"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if p := plan[0]; p.Refused != nil || string(p.Args) != `{"n":42,"reason":"asked"}` || p.Terms == nil || p.Terms.Required != 2 || p.Terms.Policy.Kind != tool.KindSkill || p.Approval == nil {
		t.Errorf("run: %+v %s", p, p.Args)
	}
	if p := plan[1]; p.Refused != nil || string(p.Args) != `{"n":7}` || p.Terms != nil {
		t.Errorf("dry run: %+v %s", p, p.Args)
	}
	for i, want := range map[int]string{2: "reason", 3: "unbound", 4: tool.ErrNotGranted, 5: "n: "} {
		if p := plan[i]; p.Refused == nil || !strings.Contains(p.Refused.Content, want) {
			t.Errorf("%d: %+v, want %s", i, p, want)
		}
	}
	known, err := w.box.Known(t.Context(), w.caller.Tenant, []string{"browser_skill:book.run", "browser_skill:try.run", "dry_run", "browser_skill:*", "browser_skill:none.run"})
	if err != nil || !slices.Equal(known, []bool{true, false, true, true, false}) {
		t.Errorf("known: %v %v", known, err)
	}
	explained := func(name string) string {
		e, err := w.box.Explain(t.Context(), w.caller.Tenant, w.caller.Agent, name)
		if err != nil {
			t.Fatal(err)
		}
		return string(e.Verdict) + " " + e.Why
	}
	for name, want := range map[string]string{"browser_skill:book.run": "gate ", "browser_skill:book.dry_run": "allow ", "browser_skill:try.run": "deny the policy of the skill", "browser_skill:part.run": "deny the agent's manifest does not allow", "browser_skill:none.run": "deny there is no browser skill"} {
		if got := explained(name); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	node := id.NewAnywhere()
	w.exec(`INSERT INTO org_nodes (tenant_id, id, name) VALUES ($1, $2, 'n')`, w.caller.Tenant, node)
	for _, c := range []struct{ change, want string }{
		{`enabled = false`, "part.dry_run try.dry_run"},
		{`enabled = true`, "book.dry_run book.run part.dry_run try.dry_run"},
		{`node_id = '` + node.String() + `'`, "part.dry_run try.dry_run"},
	} {
		w.exec(`UPDATE browser_skills SET `+c.change+` WHERE id = $1`, book)
		if got := w.offered(); got != c.want {
			t.Errorf("%s: %s, want %s", c.change, got, c.want)
		}
	}
	w.exec(`UPDATE agents SET node_id = $2 WHERE id = $1`, w.caller.Agent, node)
	if got := w.offered(); !strings.HasPrefix(got, "book.dry_run book.run") {
		t.Errorf("on its org node: %s", got)
	}
	tokens := []string{"browser_skill:book.run"}
	w.caller.Options.Tools = &tokens
	if got := w.offered(); got != "book.run" {
		t.Errorf("narrowed by the turn: %s", got)
	}
	w.caller.Options.Tools = nil
	w.exec(`DELETE FROM tool_grants WHERE browser_skill_id = $1`, book)
	if got := w.offered(); got != "part.dry_run try.dry_run" {
		t.Errorf("without grants: %s", got)
	}
}

// security.md: what a tenant supplies is work that must be bounded. A turn uses definitions of 4 MiB, those of the first slugs; a
// call by the name of a server's tool reads none, though the manifest of a workflow's tool node names every skill of a grant.
func TestDefinitionsAreReadWithinBounds(t *testing.T) {
	t.Parallel()
	w := newSearched(t)
	w.caller.Manifest = &agent.Manifest{}
	values := make([]string, 100)
	for i := range values {
		values[i] = fmt.Sprintf("%03d %s", i, strings.Repeat("x", 1990))
	}
	enum, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	wide := strings.Replace(claim, `"params":[`, `"params":[{"name":"e","type":"enum","enum":`+string(enum)+`},`, 1) // 200 KB
	wide = strings.Replace(wide, `"steps":[`, `"steps":[{"id":"e","kind":"select","target":{"selector":"#e"},"param":"e"},`, 1)
	const made = 24
	for i := range made {
		s := w.skill(fmt.Sprintf("s%02d", i), "at_commit_point", "run", "dry_run")
		w.exec(`UPDATE browser_skills SET definition = $2::json WHERE id = $1`, s, wide)
	}
	offers, err := w.box.Offer(t.Context(), w.caller)
	if err != nil {
		t.Fatal(err)
	}
	size, last := 0, ""
	for _, o := range offers {
		size += len(o.Schema)
		last = o.Name
	}
	fit := maxSkills / len(wide)
	if want := fmt.Sprintf("browser_skill:s%02d.run", fit-1); len(offers) != 2*fit || fit >= made || last != want || size > 2*maxSkills {
		t.Errorf("%d offers of %d bytes, the last is %s, want %s", len(offers), size, last, want)
	}
	for _, c := range []struct {
		name string
		read int
	}{{"refund", 0}, {"shop.refund", 0}, {"browser_skill:s23.run", 1}, {"browser_skill:none.run", 0}, {"dry_run", fit}} {
		v, _, err := w.box.named(t.Context(), &w.caller, []string{c.name})
		if err != nil || len(v.skills) != c.read {
			t.Errorf("%s: %d definitions were read, want %d (%v)", c.name, len(v.skills), c.read, err)
		}
	}
}
