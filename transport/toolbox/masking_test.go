package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

// What is shown of calls is compared with every credential that the agent may use. Much text waits for the tenant's place and stops
// when its run does, and too much for so many credentials is not shown; the calls themselves are planned all the same.
func TestHidingManyCredentialsIsBounded(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	keys := vault.New(vault.NewSecret32([32]byte{1}))
	w.box.Vault = keys
	s := w.shop("shop", []string{"buy"}, []string{"buy"})
	w.exec(`UPDATE mcp_servers SET auth_kind = 'bearer' WHERE id = $1`, s)
	const credentials = 20
	for i := range credentials {
		c := id.ConnectionID{UUID: id.NewAnywhere()}
		sealed, err := keys.Seal(store.ConnectionAt(w.caller.Tenant, c), fmt.Appendf(nil, "c4nary-%d-7f3a", i))
		if err != nil {
			t.Fatal(err)
		}
		w.exec(`INSERT INTO connections (tenant_id, id, mcp_server_id, name, credentials) VALUES ($1, $2, $3, $4, $5)`, w.caller.Tenant, c, s, fmt.Sprint("c", i), []byte(sealed))
		w.exec(`INSERT INTO tool_grants (tenant_id, id, source, mcp_server_id, connection_id, tool_pattern, effect) VALUES ($1, $2, 'mcp', $3, $4, '*', 'allow')`,
			w.caller.Tenant, id.NewAnywhere(), s, c)
	}
	shows := func(ctx context.Context, name string, n, size int) ([]tool.Planned, error) {
		args := json.RawMessage(`{"note":"c4nary-7-7f3a` + strings.Repeat("x", size) + `"}`)
		calls := make([]model.Call, n)
		for i := range calls {
			calls[i] = model.Call{ID: fmt.Sprint(i), Name: name, Args: args}
		}
		return w.box.Plan(ctx, w.caller, 0, calls)
	}
	hidden := func(p []tool.Planned, err error) bool {
		return err == nil && len(p) == 1 && strings.HasPrefix(string(p[0].Shown), `{"note":"[redacted]`)
	}
	start := func(p []tool.Planned) string {
		if len(p) == 0 {
			return "nothing"
		}
		return string(p[0].Shown[:min(len(p[0].Shown), 100)])
	}
	const much = 2 * freeMasking / credentials
	w.exec(`DELETE FROM tool_grants WHERE connection_id IS NULL`)
	for _, name := range []string{"shop.buy", "unknown"} { // a call that is refused is shown too
		for _, size := range []int{0, much} {
			if p, err := shows(t.Context(), name, 1, size); !hidden(p, err) {
				t.Errorf("%s, %d bytes: %s, %v", name, size, start(p), err)
			}
		}
		if p, err := shows(t.Context(), name, 4, maxMasking/credentials/4); err != nil || string(p[0].Shown) != string(shownMalformed) || (p[0].Refused == nil) != (name == "shop.buy") {
			t.Errorf("%s, too much: %s, %+v, %v", name, start(p), p[0].Refused, err)
		}
	}
	if err := w.box.masking.Take(t.Context(), w.caller.Tenant); err != nil {
		t.Fatal(err)
	}
	if p, err := shows(t.Context(), "shop.buy", 1, 0); !hidden(p, err) {
		t.Errorf("little needs no place: %s, %v", start(p), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan error, 2)
	go func() { _, err := shows(ctx, "shop.buy", 1, much); end <- err }()
	testkit.Eventually(t, "much waits", w.box.masking.Wanted)
	cancel()
	if err := <-end; !errors.Is(err, context.Canceled) {
		t.Errorf("a run that has ended: %v", err)
	}
	go func() { _, err := shows(t.Context(), "shop.buy", 1, much); end <- err }()
	testkit.Eventually(t, "much waits again", w.box.masking.Wanted)
	w.box.masking.Give(w.caller.Tenant)
	if err := <-end; err != nil {
		t.Error(err)
	}
}
