// Show one setting at a time.  Without a script all of them stand below each other.
const chosen = document.getElementById("settings");
if (chosen) {
  const show = () => {
    const name = new FormData(chosen).get("setting");
    for (const each of document.querySelectorAll(".setting")) each.hidden = each.id !== name;
  };
  chosen.hidden = false;
  chosen.addEventListener("change", show);
  show();
}
