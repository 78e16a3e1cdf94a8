package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// shown is a place as one line.
func shown(p Place) string {
	switch {
	case p.Tree != nil:
		return p.Path + " is the tree " + p.Tree.Path
	case p.Area != "":
		return p.Path + " is the area " + p.Area
	case p.Same != "":
		return p.Path + " is the place " + p.Same
	}
	return p.Path + " is of the host " + p.Host
}

func TestPlacesOfASandbox(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testhost.WriteFile(t, file, "")
	for name, c := range map[string]struct {
		config spec.Config
		trees  []Tree
		want   []string
	}{
		"nothing given": {want: []string{"/workspace is the area workspace", "/home/sandbox is the area home"}},
		"a workspace":   {config: spec.Config{Workspace: "/srv"}, want: []string{"/workspace is of the host /srv", "/home/sandbox is the area home"}},
		"an overlaid workspace": {config: spec.Config{Workspace: "/srv/tree"}, trees: []Tree{{Path: "/srv/tree"}},
			want: []string{"/workspace is the place /srv/tree", "/home/sandbox is the area home", "/srv/tree is the tree /srv/tree"}},
		"an overlaid home": {trees: []Tree{{Path: "/home/sandbox"}}, want: []string{"/workspace is the area workspace", "/home/sandbox is the tree /home/sandbox"}},
		"a tree with a second place, and one below": {trees: []Tree{{Path: "/srv/tree", Alias: "/mnt/other"}, {Path: "/srv/tree/sub"}, {Path: "/srv/trees"}},
			want: []string{
				"/workspace is the area workspace", "/home/sandbox is the area home", "/mnt/other is the place /srv/tree", "/srv/tree is the tree /srv/tree",
				"/srv/trees is the tree /srv/trees", "/mnt/other/sub is the place /srv/tree/sub", "/srv/tree/sub is the tree /srv/tree/sub",
			}},
		"binds": {config: spec.Config{Binds: []spec.Bind{
			{Source: dir, Target: "/a", Writable: true}, {Source: dir, Target: "/b"}, {Source: file, Target: "/c", Writable: true},
			{Source: dir + "/none", Target: "/d", Writable: true}, {Source: dir, Target: "/home/sandbox"},
		}}, want: []string{"/a is of the host " + dir, "/workspace is the area workspace"}},
	} {
		var got []string
		for _, p := range (Record{Config: c.config, Trees: c.trees}).Places() {
			got = append(got, shown(p))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAWorkspaceHidesNoBind(t *testing.T) {
	for target, refused := range map[string]bool{"/workspace": true, "/workspace/data": true, "/workspaces": false, "/data": false} {
		err := Record{Config: spec.Config{Binds: []spec.Bind{{Target: target}}}}.TakesWorkspace()
		if _, is := errors.AsType[*fault.ConfigError](err); is != refused || !is && err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestBindsFromTheHost(t *testing.T) {
	c := spec.Config{Workspace: "/srv", Binds: []spec.Bind{{Source: "/a", Target: "/b"}, {Source: "/c", Target: "/d", Writable: true}}}
	if got := WritableBinds(c); !slices.Equal(got, []string{"/workspace", "/d"}) {
		t.Errorf("writable: %q", got)
	}
	c.Overlays = []string{"/srv"}
	if got := HostBinds(c); !slices.Equal(got, c.Binds) {
		t.Errorf("with an overlaid workspace: %+v", got)
	}
}

// A change of a copy leaves the record of a sandbox that is up.
func TestLayersOfACopy(t *testing.T) {
	r := Record{Image: "own", Trees: []Tree{{Path: "/srv", Layers: []int{3, 1}}}, Stacks: map[string]Stack{
		"/workspace": {Layers: []int{2}, Below: []LayerRef{{Image: "older", Dir: "x"}, {Image: "own", Dir: "y"}}},
	}}
	before := r.Clone()
	next := r.Clone()
	places := next.Places()
	for _, p := range places {
		next.ChangeLayers(p.Path, func(own []int) []int { return append([]int{7}, own...) })
	}
	if !reflect.DeepEqual(r, before) {
		t.Errorf("the record is %+v", r)
	}
	want := map[string][]string{
		"/srv":       {"layer/7/data", "layer/3/data", "layer/1/data"},
		"/workspace": {"layer/7/data", "layer/2/data", "area/workspace"}, "/home/sandbox": {"layer/7/data", "area/home"},
	}
	for _, p := range next.Places() {
		if got := next.Own(p); !slices.Equal(got, want[p.Path]) {
			t.Errorf("%s: %q", p.Path, got)
		}
		next.WithoutUpper(p)
	}
	for _, p := range next.Places() {
		if got := next.Own(p); !slices.Equal(got, want[p.Path][1:]) {
			t.Errorf("%s without the upper layer: %q", p.Path, got)
		}
	}
	if images := r.Images(); !slices.Equal(images, []string{"own", "older"}) || (Record{Stacks: r.Stacks}).Images() != nil {
		t.Errorf("the images are %q", images)
	}
	if !r.BegunWith(Tree{Path: "/workspace"}) || r.BegunWith(r.Trees[0]) {
		t.Error("the wrong tree has layers of a snapshot")
	}
}

// A killed switch may not have made all of its new layers.
func TestLayersThatWereNotMadeAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "layer/4/data"), 0o700); err != nil {
		t.Fatal(err)
	}
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	r := Record{
		Trees:  []Tree{{Path: "/a", Layers: []int{4, 0}}, {Path: "/b", Layers: []int{5, 1}}, {Path: "/c", Layers: []int{2}}},
		Switch: &Switch{Layers: map[string]int{"/a": 4, "/b": 5}, Done: true},
	}
	for done, want := range map[bool]string{true: "[[4 0] [1] [2]]", false: "[[4 0] [5 1] [2]]"} {
		r.Switch.Done = done
		got, err := r.WithoutUnmade(top)
		if err != nil {
			t.Fatal(err)
		}
		var layers [][]int
		for _, tree := range got.Trees {
			layers = append(layers, tree.Layers)
		}
		if fmt.Sprint(layers) != want || !slices.Equal(r.Trees[1].Layers, []int{5, 1}) {
			t.Errorf("done %t: %v", done, layers)
		}
	}
	testhost.WriteFile(t, filepath.Join(dir, "layer/5"), "")
	r.Switch.Done = true
	if _, err := r.WithoutUnmade(top); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with a file in the place of a layer: %v", err)
	}
}

// Only a user's pause is a pause: the runtime stops the processes for its own changes, too.
func TestWhatIsHalfDone(t *testing.T) {
	for name, c := range map[string]struct {
		r                 Record
		half, standsStill bool
	}{
		"nothing":                 {Record{}, false, false},
		"a switch":                {Record{Switch: &Switch{}}, true, true},
		"a switch during a pause": {Record{Switch: &Switch{Paused: true}}, true, false},
		"a join":                  {Record{Join: &Join{}}, true, true},
		"a join during a pause":   {Record{Join: &Join{Paused: true}}, true, false},
		"a workspace":             {Record{Attaching: &Attachment{}}, true, false},
		"another network":         {Record{Rewiring: true}, true, false},
	} {
		if c.r.HalfDone() != c.half || c.r.StandsStill() != c.standsStill {
			t.Errorf("%s: half done %t, stands still %t", name, c.r.HalfDone(), c.r.StandsStill())
		}
	}
}

func TestIDsOnTheHost(t *testing.T) {
	mappings := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1000, Size: 1}, {ContainerID: 10, HostID: 200000, Size: 5}}
	for inside, want := range map[uint32]int{0: 1000, 1: -1, 9: -1, 10: 200000, 14: 200004, 15: -1} {
		if got := HostID(mappings, inside); got != want {
			t.Errorf("%d is %d, want %d", inside, got, want)
		}
	}
}

// The layers of a stopped sandbox show the ids on disk, those of a sandbox that is up its ids on the host.
func TestATreeIsDescribed(t *testing.T) {
	r := fullRecord()
	r.UIDMappings = []specs.LinuxIDMapping{{HostID: 200000, Size: 65536}}
	r.GIDMappings = []specs.LinuxIDMapping{{HostID: 300000, Size: 65536}}
	tree := r.Trees[0]
	tree.UID, tree.GID = 7, 8
	for _, c := range []struct {
		inside, onDisk bool
		want           string
	}{
		{false, false, "base 1879048192, owner {7 8}, user {201000 301001}"},
		{true, false, "base 0, owner {7 8}, user {1000 1001}"},
		{true, true, "base 0, owner {1000 1001}, user {1000 1001}"},
	} {
		tree.OnDisk = c.onDisk
		o := r.Describe(tree, c.inside)
		if got := fmt.Sprintf("base %d, owner %v, user %v", o.Base, o.Owner, o.User); got != c.want || o.Path != tree.Path || !o.Image {
			t.Errorf("%+v: %s, %+v", c, got, o)
		}
	}
}
