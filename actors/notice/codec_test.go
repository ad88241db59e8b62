package notice

import (
	"reflect"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// What crosses nodes arrives as it was sent.
func TestMessagesCrossNodes(t *testing.T) {
	c := msg.NewCodec()
	AddTo(c)
	tenant := id.TenantID{UUID: id.NewAnywhere()}
	for _, m := range []any{
		Watch{}, Watch{Number: 3, Tenants: []id.TenantID{tenant, {UUID: id.NewAnywhere()}}},
		Hints{Tenants: []Hint{{Tenant: tenant, Changes: []msg.Change{run(), {Kind: "kb.document", ID: id.NewAnywhere()}}, Lost: Runs | Resources, Managers: true}}},
	} {
		name, body, err := c.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := c.Decode(name, body)
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%v: %+v arrives as %+v", err, m, back)
		}
	}
}
