package msg

import (
	"reflect"
	"testing"

	"agentsvc/schemas/id"
)

func TestARevocationCrossesNodes(t *testing.T) {
	t.Parallel()
	c := NewCodec()
	full := Revoked{Number: 7, What: RevokedSession}
	for i, v := 0, reflect.ValueOf(&full).Elem(); i < v.NumField(); i++ {
		if u, ok := v.Field(i).Addr().Interface().(interface{ SetBytes16([16]byte) }); ok {
			u.SetBytes16(id.NewAnywhere())
		}
		if f := v.Field(i); f.Kind() == reflect.Slice {
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			if u, ok := f.Index(0).Addr().Interface().(interface{ SetBytes16([16]byte) }); ok {
				u.SetBytes16(id.NewAnywhere())
			}
		}
		if v.Field(i).IsZero() {
			t.Fatalf("%s is not set", v.Type().Field(i).Name)
		}
	}
	for _, r := range []Revoked{full, {What: ChangedAccess, Tenant: full.Tenant}} {
		name, body, err := c.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		back, err := c.Decode(name, body)
		if err != nil || !reflect.DeepEqual(back, any(r)) {
			t.Errorf("%x: %+v, %v", body, back, err)
		}
	}
	if _, body, _ := c.Encode(Revoked{What: ChangedAccess, Tenant: full.Tenant}); body[0] != 0xa0+2 { // a map of two
		t.Errorf("what it is not about is sent: %x", body)
	}
}
