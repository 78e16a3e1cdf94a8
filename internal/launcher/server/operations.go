package server

import (
	"context"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// operations are those of the protocol by their words, each with the permission that the rule of a user has to give.
// Root and the launcher's own user have all permissions. Without an entry here an operation is refused.
var operations = byWord(
	on(protocol.OpCreate, allowCreate, create),
	on(protocol.OpList, everyone, records(list)),
	on(protocol.OpEvents, everyone, follow),
	on(protocol.OpPool, allowPool, once(pool)),
	on(protocol.OpSnapshots, everyone, once(func(ctx context.Context, c *call, _ protocol.None) ([]string, error) {
		return c.server.core.Snapshots(ctx, c.peer.uid)
	})),
	on(protocol.OpRemoveSnapshot, everyone, once(func(ctx context.Context, c *call, name string) (a protocol.None, err error) {
		return a, c.server.core.RemoveSnapshot(ctx, name, c.peer.uid)
	})),
	on(protocol.OpBeginning, everyone, once(func(ctx context.Context, c *call, name string) (protocol.Beginning, error) {
		return c.server.core.Beginning(ctx, name, c.peer.uid)
	})),

	on(protocol.OpImagePull, allowImages, pullImage),
	on(protocol.OpImageLayer, allowImages, once(addImageLayer)),
	on(protocol.OpImageAdd, allowImages, once(addImage)),
	on(protocol.OpImages, allowImages, records(listImages)),
	on(protocol.OpImage, allowImages, records(inspectImage)),
	on(protocol.OpImageRemove, allowImages, once(removeImage)),
	on(protocol.OpImagePrune, allowImages, once(pruneImages)),
	on(protocol.OpImageVerify, allowImages, once(verifyImage)),

	on(protocol.OpRemove, everyone, once(remove)), // a missing sandbox is no error, so remove checks the owner itself
	onSandbox(protocol.OpInfo, owner, records(info)),
	onSandbox(protocol.OpStart, allowStart, runCommand),
	onSandbox(protocol.OpAttach, owner, attachCommand),
	onSandbox(protocol.OpExecs, owner, records(execs)),
	onSandbox(protocol.OpStats, owner, inSandbox(func(box Sandbox, ctx context.Context, _ protocol.None) (spec.Stats, error) {
		return box.Stats(ctx)
	})),
	onSandbox(protocol.OpPause, owner, does(Sandbox.Pause)),
	onSandbox(protocol.OpResume, owner, does(Sandbox.Resume)),
	onSandbox(protocol.OpUpdate, allowUpdate, takes(Sandbox.Update)),
	onSandbox(protocol.OpNetwork, allowNetwork, inSandbox(Sandbox.ChangeNetwork)),
	onSandbox(protocol.OpNetworkLog, owner, networkLog),
	onSandbox(protocol.OpNetworkDecide, owner, opens(func(box Sandbox, ctx context.Context, _ protocol.None) (*os.File, error) {
		return box.NetworkDecider(ctx)
	})),
	onSandbox(protocol.OpDial, owner, opens(Sandbox.Dial)),
	onSandbox(protocol.OpUndo, owner, takes(Sandbox.Undo)),
	onSandbox(protocol.OpDiscard, owner, does(Sandbox.Discard)),
	onSandbox(protocol.OpSnapshot, owner, takes(Sandbox.Snapshot)),
	onSandbox(protocol.OpWorkspace, allowWorkspace, once(setWorkspace)),
	onSandbox(protocol.OpLayers, owner, layers),
	onSandbox(protocol.OpApplied, owner, inFiles(func(box Sandbox, ctx context.Context, q protocol.AppliedRequest) error {
		return box.Applied(ctx, q.Tree, q.Stamps)
	})),
	onSandbox(protocol.OpVerify, owner, inFiles(Sandbox.Verify)),
	onSandbox(protocol.OpUntie, owner, inFiles(Sandbox.Untie)),
)

func byWord(all ...operation) map[string]operation {
	table := map[string]operation{}
	for _, o := range all {
		table[o.word] = o
	}
	return table
}
