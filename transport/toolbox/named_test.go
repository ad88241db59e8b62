package toolbox

import (
	"slices"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
)

// A call by a qualified name asks the server of that name alone, and means what it means among the
// tools of all servers.
func TestACallAsksTheServerOfItsName(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	w.shop("aa", []string{"read", "bb.late", "zz.x"}, nil)
	w.shop("bb", []string{"read", "late"}, nil)
	w.shop("down", nil, []string{"kept"})
	w.exec(`UPDATE mcp_servers SET enabled = false WHERE id = $1`, w.shop("off", []string{"x"}, nil))
	w.skill("book", "always_before_run", "*")
	w.caller.Manifest.Handoffs = []string{"other"}
	of := id.WorkflowID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO workflows (tenant_id, id, slug, name, latest_version) VALUES ($1, $2, 'w', 'W', 1)`, w.caller.Tenant, of)
	callers := map[string]tool.Caller{"an agent": w.caller, "a workflow": {Tenant: w.caller.Tenant, Run: w.caller.Run, Workflow: &of}}
	plan := func(what string, names ...string) (tools []string) {
		t.Helper()
		calls := make([]model.Call, len(names))
		for i, n := range names {
			calls[i] = model.NewCall("c", n, `{}`)
		}
		plan, err := w.box.Plan(t.Context(), callers[what], 1, calls)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range plan {
			tools = append(tools, p.Tool)
		}
		return tools
	}
	for _, c := range []struct {
		what  string
		names []string
	}{{"a workflow", []string{"aa.read"}}, {"a workflow", []string{"aa.read", "aa.bb.late"}}, {"an agent", []string{"aa.read"}},
		{"an agent", []string{"browser_skill:book.run"}}, {"an agent", []string{"aa.zz.x", "browser_skill:book.dry_run"}}} {
		if got := plan(c.what, c.names...); !slices.Equal(got, c.names) {
			t.Errorf("%s: %q are %q", c.what, c.names, got)
		}
	}
	plan("an agent", "builtin:handoff", "aa.read")
	if got := slices.Compact(w.askedFor()); !slices.Equal(got, []string{"aa"}) {
		t.Errorf("%q were asked", got)
	}
	same := func() {
		t.Helper()
		for what, caller := range callers {
			v, err := w.box.lookFor(t.Context(), &caller, nil)
			if err != nil {
				t.Fatal(err)
			}
			offers := tool.Offers(v.access, caller.Manifest, caller.Options, v.specs)
			for _, name := range []string{"aa.read", "bb.read", "read", "late", "bb.late", "aa.bb.late", "zz.x", "down.kept", "kept", "down.x", "off.x", "x", "aa.none", "aa.", "aa", ".",
				"builtin:handoff", "handoff", "builtin:none", "browser_skill:book.run", "browser_skill:none.run", "browser_skill:book.none", "run", "aa:read", "AA.read"} {
				want := name
				if o, ok := tool.Find(offers, name); ok {
					want = o.Qualified()
				}
				for _, names := range [][]string{{name}, {name, "aa.read"}, {"bb.late", name}} {
					if got := plan(what, names...)[slices.Index(names, name)]; got != want {
						t.Errorf("%s: %s of %q is %s, want %s", what, name, names, got, want)
					}
				}
			}
		}
	}
	same()
	w.exec(`DELETE FROM tool_grants WHERE mcp_server_id = (SELECT id FROM mcp_servers WHERE slug = 'bb')`)
	if got := plan("an agent", "bb.late"); got[0] != "aa.bb.late" {
		t.Errorf("without bb: %q", got)
	}
	same()
}
