package toolbox

import (
	"encoding/json"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// Edited arguments are shown without the credentials of the connections of the agent or of the
// workflow, and not at all while one of them cannot be opened.
func TestHowAnEditIsShown(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	keys := vault.New(vault.NewSecret32([32]byte{1}))
	w.box.Vault = keys
	s := w.shop("shop", []string{"buy"}, nil)
	w.exec(`UPDATE mcp_servers SET auth_kind = 'bearer' WHERE id = $1`, s)
	connection := id.ConnectionID{UUID: id.NewAnywhere()}
	sealed, err := keys.Seal(store.ConnectionAt(w.caller.Tenant, connection), []byte("c4nary-7f3a"))
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`INSERT INTO connections (tenant_id, id, mcp_server_id, name, credentials) VALUES ($1, $2, $3, 'c', $4)`, w.caller.Tenant, connection, s, []byte(sealed))
	of := id.WorkflowID{UUID: id.NewAnywhere()}
	w.exec(`INSERT INTO workflows (tenant_id, id, slug, name, latest_version) VALUES ($1, $2, 'w', 'W', 1)`, w.caller.Tenant, of)
	shows := func(want string) {
		t.Helper()
		for what, by := range map[string]tool.Caller{"an agent": {Tenant: w.caller.Tenant, Agent: w.caller.Agent}, "a workflow": {Tenant: w.caller.Tenant, Workflow: &of}} {
			got, err := w.box.ShowEdit(t.Context(), by, json.RawMessage(`{"note":"key c4nary-7f3a.","token":"t","kept":"[redacted]","n":1.0}`))
			if err != nil || string(got) != want {
				t.Errorf("of %s: %s, %v", what, got, err)
			}
		}
	}
	shows(`{"note":"key [redacted].","token":"[redacted]","kept":"[redacted]","n":1.0}`)
	w.exec(`UPDATE connections SET credentials = '\x00'`)
	shows(string(shownMalformed))
	w.exec(`DELETE FROM tool_grants`)
	shows(`{"note":"key c4nary-7f3a.","token":"[redacted]","kept":"[redacted]","n":1.0}`)
}
