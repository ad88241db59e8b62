package browser
import ("testing";"agentsvc/schemas/id";"fmt")
func TestZZ(t *testing.T) {
	b, w := quickly(t), newWorld(t)
	p := newPupil(t, recorderOf(b), id.TenantID{UUID: id.NewAnywhere()})
	p.start(w.url + "/lab/kinds")
	fmt.Println(p.all.String())
	p.act(`{"kind":"commit",`+p.at("text=draft")+`}`)
	fmt.Println(p.all.String())
}
