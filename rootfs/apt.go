package rootfs

import (
	"fmt"
	"os"
)

// aptParts is the directory with the configuration of apt. aptPart is the runtime's own file there: apt reads it after
// the other files.
const (
	aptParts = "/etc/apt/apt.conf.d"
	aptPart  = "zz-sandbox-runtime"
)

// aptConfig lets root without capabilities run apt. apt downloads as another user, which takes capabilities, so it
// must stay root. The directories for downloads belong to that other user: one gets another place, and two are
// made anew before an update, if they are empty.
const aptConfig = `APT::Sandbox::User "root";
Dir::Cache::Archives "sandbox-archives/";
APT::Update::Pre-Invoke { "for d in partial auxfiles; do d=/var/lib/apt/lists/$d; [ ! -d $d ] || [ -O $d ] || { rmdir $d && mkdir -m 755 $d; }; done || true"; };
`

// placeApt shows aptConfig in a root that is writable and has apt.
func (p *plan) placeApt() error {
	at, missing, err := p.find(aptParts)
	if absent(err) || os.IsPermission(err) || len(missing) > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("configuration of apt: %w", err)
	}
	if !at.dir || at.path != aptParts || at.bind == nil || at.bind.src.overlay == nil || at.bind.src.shown != asOnDisk {
		return nil // no root of the whole host or of an image, or a bind of the user's own
	}
	at.descend([]string{aptPart}).through(&node{kind: maskNode, file: true, text: aptConfig})
	return nil
}
