# SPDX-License-Identifier: Apache-2.0
"""PyTorch Geometric's GNNExplainer: a small fit of a mask for each of the nodes that it explains."""

import torch
from torch_geometric.datasets import KarateClub
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCN

torch.manual_seed(0)
data = KarateClub()[0]
net = GCN(data.num_features, 16, num_layers=2, out_channels=4)
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(200):
    optimizer.zero_grad()
    net.train()
    loss = torch.nn.functional.cross_entropy(
        net(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]
    )
    loss.backward()
    optimizer.step()
explainer = Explainer(
    net,
    GNNExplainer(epochs=150),
    explanation_type="model",
    node_mask_type="attributes",
    edge_mask_type="object",
    model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
)
for node in range(12):
    explainer(data.x, data.edge_index, index=node)
print(loss.item())
