package platform

import (
	"fmt"
	"strings"
	"testing"

	"agentsvc/schemas/testkit"
	limit "agentsvc/schemas/turn"
)

// A tenant that has all its checks of definitions and manifests holds up its own next one, and none
// of another tenant.
func TestChecksOfTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	places := limit.New(2, 1)
	w.Judging = places
	paths := func(p party) []string {
		return []string{
			`/v1/agents {"name": "x", "slug": "turn", "manifest": ` + manifest + `}`, fmt.Sprintf(`/v1/agents/%s/versions {"manifest": %s}`, p.agent, manifest),
			`/v1/workflows {"name": "x", "slug": "turn", "definition": ` + oneDelay + `}`, fmt.Sprintf(`/v1/workflows/%s/versions {"definition": %s}`, p.workflow, oneDelay),
			fmt.Sprintf(`/v1/workflows/%s/versions/1/publish {}`, p.workflow),
		}
	}
	call := func(p party, line string) answer {
		var path string
		_, _ = fmt.Sscan(line, &path)
		return w.call(p, "POST", path, line[len(path)+1:])
	}
	for i, line := range paths(w.a) {
		if err := places.Take(t.Context(), w.a.tenant); err != nil {
			t.Fatal(err)
		}
		said := make(chan answer, 1)
		go func() { said <- call(w.a, line) }()
		testkit.Eventually(t, "the check waits", places.Wanted)
		if other := paths(w.b)[i]; call(w.b, other).status/100 != 2 {
			t.Errorf("%s: the other tenant's is refused", other)
		}
		places.Give(w.a.tenant)
		if a := <-said; a.status/100 != 2 {
			t.Errorf("%s: %d %s", line, a.status, a.body)
		}
	}
}

// A key that is revoked while its request waits, with a body that had arrived, changes nothing.
func TestWhatIsRevokedWhileItWaitsChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	places := limit.New(2, 1)
	w.Judging = places
	key := w.call(w.a, "POST", "/v1/api-keys", `{"name": "old"}`)
	old := w.a
	old.secret, _ = key.get("secret").(string)
	if err := places.Take(t.Context(), w.a.tenant); err != nil {
		t.Fatal(err)
	}
	said := make(chan answer, 1)
	go func() {
		said <- w.call(old, "POST", "/v1/agents", `{"name": "x", "slug": "late", "manifest": `+manifest+`}`)
	}()
	testkit.Eventually(t, "the check waits", places.Wanted)
	if got := w.call(w.a, "DELETE", "/v1/api-keys/"+fmt.Sprint(key.get("id")), ""); got.status != 204 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	places.Give(w.a.tenant)
	if got := <-said; got.status != 401 || got.code() != "UNAUTHORIZED" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := w.call(w.a, "GET", "/v1/agents", ""); got.status != 200 || strings.Contains(got.body, `"late"`) {
		t.Errorf("%d %s", got.status, got.body)
	}
}
